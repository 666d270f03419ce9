// at: internal/network/example/example.go

// Package network breaks the rule network-alone.
package network

import (
	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:network-alone
	_ "fairlead.dev/fairlead/internal/cniproto"
	_ "fairlead.dev/fairlead/internal/controller" // want: depguard:network-alone
	_ "fairlead.dev/fairlead/internal/driver"     // want: depguard:network-alone
	_ "fairlead.dev/fairlead/internal/netdev"     // want: depguard:network-alone
	_ "fairlead.dev/fairlead/internal/node"       // want: depguard:network-alone
)
