// at: cmd/fairlead-node/stage/example.go

// Package stage breaks the rule main-node.
package stage

import (
	_ "fairlead.dev/fairlead/internal/cli" // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/config"
	_ "fairlead.dev/fairlead/internal/controller"    // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/driver"        // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/driver/native" // want: depguard:drivers depguard:main-node
	_ "fairlead.dev/fairlead/internal/gc"            // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/ipam"          // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/ipam/block"    // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/migrate"       // want: depguard:main-node
	_ "fairlead.dev/fairlead/internal/netdev/host"
	_ "fairlead.dev/fairlead/internal/nft"
	_ "fairlead.dev/fairlead/internal/node"
	_ "fairlead.dev/fairlead/internal/run"
	_ "fairlead.dev/fairlead/internal/slim" // want: depguard:main-node
)
