// at: internal/node/example/example.go

// Package example breaks the rule kernel.
package example

import (
	_ "github.com/vishvananda/netlink"    // want: depguard:kernel
	_ "github.com/vishvananda/netlink/nl" // want: depguard:kernel
	_ "github.com/vishvananda/netns"      // want: depguard:kernel
)
