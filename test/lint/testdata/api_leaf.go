// at: api/v1alpha1/example/example.go

// Package example breaks the rules api-leaf, upward and exec.
package example

import (
	_ "os/exec" // want: depguard:exec

	_ "k8s.io/apimachinery/pkg/runtime"

	_ "fairlead.dev/fairlead/cmd/fairlead"    // want: depguard:upward
	_ "fairlead.dev/fairlead/internal/driver" // want: depguard:api-leaf
)
