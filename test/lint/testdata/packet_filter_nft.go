// at: internal/nft/example/example.go

// Package example is where packet filters are written, and breaks the rule
// stages-node.
package example

import (
	_ "github.com/google/nftables"
	_ "sigs.k8s.io/knftables"

	_ "fairlead.dev/fairlead/internal/ipam" // want: depguard:stages-node
)
