// at: internal/node/answer/example/example.go

// Package example breaks the rules exec and delegate.
package example

import (
	_ "os/exec" // want: depguard:exec

	_ "github.com/containernetworking/cni/libcni"     // want: depguard:delegate
	_ "github.com/containernetworking/cni/pkg/invoke" // want: depguard:delegate
)
