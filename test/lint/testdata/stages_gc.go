// at: internal/gc/stages/example.go

// Package stages breaks the rule stages-controller.
package stages

import (
	_ "fairlead.dev/fairlead/internal/cniproto" // want: depguard:stages-controller
	_ "fairlead.dev/fairlead/internal/driver"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:stages-controller
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:stages-controller
	_ "fairlead.dev/fairlead/internal/pod"
)
