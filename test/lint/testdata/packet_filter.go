// at: internal/node/filter/example.go

// Package filter breaks the rule packet-filter.
package filter

import (
	_ "github.com/google/nftables" // want: depguard:packet-filter
	_ "sigs.k8s.io/knftables"      // want: depguard:packet-filter
)
