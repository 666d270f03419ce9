// at: internal/netdev/example/example.go

// Package example may talk to the kernel.
package example

import (
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"

	_ "fairlead.dev/fairlead/api/v1alpha1"
)
