// at: internal/netdev/link/up/example.go

// Package up breaks the rule netdev-link.
package up

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/netdev/host" // want: depguard:netdev-link
	_ "fairlead.dev/fairlead/internal/netdev/plug" // want: depguard:netdev-link
)
