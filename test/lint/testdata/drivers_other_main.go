// at: cmd/fairlead-node/drivers/example.go

// Package drivers breaks the rule drivers in another program.
package drivers

import (
	_ "fairlead.dev/fairlead/internal/driver/native" // want: depguard:drivers
)
