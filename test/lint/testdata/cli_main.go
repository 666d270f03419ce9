// at: cmd/fairlead/stages/example.go

// Package stages breaks the rule cli.
package stages

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/cniproto"   // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/controller" // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/driver"     // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/gc"         // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/ipam/audit"
	_ "fairlead.dev/fairlead/internal/migrate"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/nft"    // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:cli
	_ "fairlead.dev/fairlead/internal/run"
	_ "fairlead.dev/fairlead/internal/slim" // want: depguard:cli
)
