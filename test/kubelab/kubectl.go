package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

// runKubectl runs kubectl of the same release, for machines that have none. It prints its
// errors and sets the exit code itself.
func runKubectl(args []string) {
	os.Args = append([]string{"kubectl"}, args...) // kubectl derives its plugins' names from it
	util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
}
