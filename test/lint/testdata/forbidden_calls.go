// at: internal/controller/calls/example.go

// Package calls breaks every rule about calls.
package calls

import (
	"fmt"
	"io"
	"os"
	"syscall"
	clock "time"
)

// Example calls what is forbidden, one of them under another name.
func Example(w io.Writer) {
	fmt.Println("hello")  // want: forbidigo:print
	fmt.Printf("%d\n", 1) // want: forbidigo:print
	fmt.Print("hello")    // want: forbidigo:print
	println("hello")      // want: forbidigo:print
	fmt.Fprintln(w, "hello")
	clock.Sleep(clock.Second)   // want: forbidigo:sleep
	_ = os.Getenv("HOME")       // want: forbidigo:env
	_, _ = os.LookupEnv("HOME") // want: forbidigo:env
	_ = os.Environ()            // want: forbidigo:env
	_ = os.ExpandEnv("$HOME")   // want: forbidigo:env

	_, _ = os.StartProcess("/bin/sh", nil, nil)         // want: forbidigo:exec
	_ = syscall.Exec("/bin/sh", nil, nil)               // want: forbidigo:exec
	_, _ = syscall.ForkExec("/bin/sh", nil, nil)        // want: forbidigo:exec
	_, _, _ = syscall.StartProcess("/bin/sh", nil, nil) // want: forbidigo:exec
}
