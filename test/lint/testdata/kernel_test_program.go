// at: test/example/example.go

// Package example is a test program: it may talk to the kernel, run programs,
// choose drivers, print and read the environment, but it may not sleep.
package example

import (
	"fmt"
	"os"
	_ "os/exec"
	"time"

	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"

	_ "fairlead.dev/fairlead/internal/cniproto/server"
	_ "fairlead.dev/fairlead/internal/driver/native"
)

// Example does what a test program may do, and sleeps.
func Example() {
	fmt.Println(os.Getenv("HOME"))
	time.Sleep(time.Second) // want: forbidigo:sleep
}
