// at: internal/netdev/stages/example.go

// Package stages breaks the rule stages-node.
package stages

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/controller" // want: depguard:stages-node
	_ "fairlead.dev/fairlead/internal/driver"     // want: depguard:stages-node
	_ "fairlead.dev/fairlead/internal/gc"         // want: depguard:stages-node
	_ "fairlead.dev/fairlead/internal/ipam"       // want: depguard:stages-node
	_ "fairlead.dev/fairlead/internal/ipam/block" // want: depguard:stages-node
)
