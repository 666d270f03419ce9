// fairlead is the operator's command: it shows the state of Fairlead in a cluster and
// needs only a kubeconfig. Installed as kubectl-fairlead it is also "kubectl fairlead".
package main

import (
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/internal/cli"
	"fairlead.dev/fairlead/internal/run"
)

func main() { os.Exit(execute(os.Args)) }

func execute(args []string) int {
	ctx, stop := run.SignalContext()
	defer stop()
	return cli.New(filepath.Base(args[0]), os.Stdout, os.Stderr).Run(ctx, args[1:])
}
