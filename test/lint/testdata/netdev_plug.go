// at: internal/netdev/plug/up/example.go

// Package up breaks the rule netdev-plug.
package up

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:netdev-plug
	_ "fairlead.dev/fairlead/internal/netdev/link"
	_ "fairlead.dev/fairlead/internal/node" // want: depguard:netdev-plug
)
