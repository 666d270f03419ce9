// at: cmd/fairlead-controller/example/example.go

// Package example is the one product place that may list the drivers.
package example

import (
	_ "fairlead.dev/fairlead/internal/driver/native"
	_ "fairlead.dev/fairlead/internal/driver/neutron"
)
