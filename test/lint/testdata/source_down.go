// at: internal/source/example/example.go

// Package example breaks the rule source-down.
package example

import (
	_ "fairlead.dev/fairlead/internal/cniproto"   // want: depguard:source-down
	_ "fairlead.dev/fairlead/internal/controller" // want: depguard:source-down
	_ "fairlead.dev/fairlead/internal/driver"
	_ "fairlead.dev/fairlead/internal/gc"     // want: depguard:source-down
	_ "fairlead.dev/fairlead/internal/netdev" // want: depguard:source-down
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:source-down
)
