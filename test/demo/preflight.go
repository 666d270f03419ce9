package main

import (
	"context"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

const (
	// The measured memory of the programs, and a third more.
	controlPlaneMemory = 600 << 20
	controllerMemory   = 150 << 20 // and the demo's own two programs
	nodeMemory         = 110 << 20
	podMemory          = 1 << 20
	needDisk           = 256 << 20
)

// preflight returns the missing requirements of the machine, each with its remedy. It
// changes nothing.
func preflight(ctx context.Context, s settings, ipv4Only bool) []string {
	lacks := lab.LacksKernel(ctx, "make demo", ipv4Only)
	if !s.Check {
		lacks = append(lacks, programLacks(s)...)
	}
	memory := controllerMemory + uint64(s.Nodes)*nodeMemory + uint64(s.Pods)*podMemory
	if s.Kubeconfig == "" {
		memory += controlPlaneMemory
	}
	lacks = append(lacks, lab.LacksSpace(memory, needDisk)...)
	if s.Kubeconfig != "" {
		lacks = append(lacks, clusterLacks(ctx, s.Kubeconfig)...)
	}
	return lacks
}

func programLacks(s settings) []string {
	programs := []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "podrunner"}
	if s.Kubeconfig == "" {
		programs = append(programs, "kubelab")
	}
	return harness.MissingPrograms(s.Bin, programs...)
}
