// at: cmd/fairlead-cni/calls/example.go

// Package calls may read the environment: it is a plugin's input.
package calls

import (
	"fmt"
	"os"
)

// Example reads the environment.
func Example() {
	_ = os.Environ()
	_ = os.Getenv("CNI_COMMAND")
	fmt.Println("hello") // want: forbidigo:print
}
