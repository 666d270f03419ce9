// at: internal/controller/plain/example.go

// Package plain breaks the rule controller-plain.
package plain

import (
	_ "fairlead.dev/fairlead/internal/driver"
	_ "fairlead.dev/fairlead/internal/ipam"        // want: depguard:controller-plain
	_ "fairlead.dev/fairlead/internal/nad"         // want: depguard:controller-plain
	_ "fairlead.dev/fairlead/internal/source/npwg" // want: depguard:controller-plain
	_ "fairlead.dev/fairlead/internal/whereabouts" // want: depguard:controller-plain
)
