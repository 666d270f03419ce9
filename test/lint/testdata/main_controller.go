// at: cmd/fairlead-controller/stage/example.go

// Package stage breaks the rule main-controller.
package stage

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/cli"      // want: depguard:main-controller
	_ "fairlead.dev/fairlead/internal/cniproto" // want: depguard:main-controller
	_ "fairlead.dev/fairlead/internal/config"
	_ "fairlead.dev/fairlead/internal/controller"
	_ "fairlead.dev/fairlead/internal/gc"
	_ "fairlead.dev/fairlead/internal/ipam/block"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:main-controller
	_ "fairlead.dev/fairlead/internal/nft"    // want: depguard:main-controller
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:main-controller
	_ "fairlead.dev/fairlead/internal/run"
)
