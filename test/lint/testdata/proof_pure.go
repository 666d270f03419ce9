// at: internal/controller/proof/example.go

// Package proof breaks the rules proof-pure and pod-io.
package proof

import (
	_ "time"

	_ "net/http" // want: depguard:pod-io

	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/driver"     // want: depguard:proof-pure
	_ "sigs.k8s.io/controller-runtime/pkg/client" // want: depguard:proof-pure
)
