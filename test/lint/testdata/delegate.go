// at: internal/node/delegate/example/example.go

// Package example is where CNI plugins are executed, and breaks the rule stages-node.
package example

import (
	_ "os/exec"

	_ "github.com/containernetworking/cni/libcni"

	_ "fairlead.dev/fairlead/internal/ipam" // want: depguard:stages-node
)
