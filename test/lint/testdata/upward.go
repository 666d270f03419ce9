// at: internal/run/upward/example.go

// Package upward breaks the rules upward, test-only and exec.
package upward

import (
	_ "os/exec" // want: depguard:exec
	_ "os/signal"

	_ "fairlead.dev/fairlead/cmd/fairlead"  // want: depguard:upward
	_ "fairlead.dev/fairlead/test/kubetest" // want: depguard:test-only
)
