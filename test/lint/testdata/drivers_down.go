// at: internal/driver/native/example/example.go

// Package example breaks the rule drivers-down.
package example

import (
	_ "fairlead.dev/fairlead/internal/cniproto"   // want: depguard:drivers-down
	_ "fairlead.dev/fairlead/internal/controller" // want: depguard:drivers-down
	_ "fairlead.dev/fairlead/internal/gc"         // want: depguard:drivers-down
	_ "fairlead.dev/fairlead/internal/ipam/block"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:drivers-down
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:drivers-down
)
