// at: test/harness/example/example.go

// Package example breaks the rule harness.
package example

import (
	_ "os/exec"

	_ "golang.org/x/sys/unix"
	_ "k8s.io/api/core/v1" // want: depguard:harness

	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:harness
)
