// at: internal/migrate/example.go

// Package migrate breaks the rules migrate-pure and migrate-io.
package migrate

import (
	_ "net" // want: depguard:migrate-io
	_ "net/netip"
	_ "os" // want: depguard:migrate-io

	_ "k8s.io/api/core/v1"
	_ "sigs.k8s.io/controller-runtime" // want: depguard:migrate-pure

	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/ipam"
)
