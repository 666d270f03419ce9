// at: internal/node/plugin/example/example.go

// Package plugin breaks the rule plugin-alone.
package plugin

import (
	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:plugin-alone
	_ "fairlead.dev/fairlead/internal/cniproto"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:plugin-alone
	_ "fairlead.dev/fairlead/internal/node"   // want: depguard:plugin-alone
)
