// at: internal/controller/drivers/example.go

// Package drivers breaks the rule drivers.
package drivers

import (
	_ "fairlead.dev/fairlead/internal/driver"
	_ "fairlead.dev/fairlead/internal/driver/drivertest"
	_ "fairlead.dev/fairlead/internal/driver/native"  // want: depguard:drivers
	_ "fairlead.dev/fairlead/internal/driver/neutron" // want: depguard:drivers
)
