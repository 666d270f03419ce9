// at: internal/config/calls/example.go

// Package calls may read the environment and nothing more.
package calls

import (
	"fmt"
	"os"
	"time"
)

// Example reads the environment.
func Example() {
	_ = os.Getenv("HOME")
	time.Sleep(time.Second) // want: forbidigo:sleep
	fmt.Println("hello")    // want: forbidigo:print
}
