// at: internal/tracing/leaf/example.go

// Package leaf breaks the rule leaves.
package leaf

import (
	_ "fairlead.dev/fairlead/api/v1alpha1"  // want: depguard:leaves
	_ "fairlead.dev/fairlead/internal/node" // want: depguard:leaves
	_ "fairlead.dev/fairlead/internal/pod"  // want: depguard:leaves
)
