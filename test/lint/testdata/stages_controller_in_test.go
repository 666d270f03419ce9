// at: internal/controller/stages/example_test.go

package stages

import (
	_ "os"
	_ "os/exec"

	_ "fairlead.dev/fairlead/internal/node" // want: depguard:stages-controller
	_ "fairlead.dev/fairlead/test/kubetest"
)
