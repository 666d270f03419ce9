package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/test/lab"
)

const (
	// needMemory is the measured memory with 30 pods, and a third more.
	needMemory = 3 << 30
	needDisk   = 512 << 20
)

// preflight returns the missing requirements of the machine, each with its remedy. It
// changes nothing.
func preflight(s settings) []string {
	lacks := slices.Concat(lab.LacksKernel(context.Background(), "make e2e", false), kernelLacks(), lab.LacksTool("runc", "runc"), lab.LacksTool("nft", "nftables"))
	if s.Only == onlyConformance {
		for _, program := range suiteTools {
			if _, err := exec.LookPath(program); err != nil {
				lacks = append(lacks, fmt.Sprintf("the program %s, for images: `make k8s-e2e` says which package has it", program))
			}
		}
	}
	programs := []string{
		"fairlead", "fairlead-controller", "fairlead-node", "fairlead-cni", "kubelab", "e2e-server",
		"containerd/containerd", "containerd/containerd-shim-runc-v2", "containerd/ctr",
	}
	for _, name := range delegatedPlugins {
		programs = append(programs, filepath.Join(referenceDir, name))
	}
	if s.Only == onlyConformance {
		for _, name := range suitePrograms {
			programs = append(programs, filepath.Join(suiteDir, name))
		}
	}
	if s.upgrades() {
		programs = append(programs, "helm", filepath.Join(oldDir, "fairlead-node"))
	}
	if s.Clocked {
		programs = append(programs, filepath.Join(clockedDir, "fairlead-controller"), filepath.Join(clockedDir, "fairlead-node"))
	}
	for _, name := range programs {
		if info, err := os.Stat(filepath.Join(s.Bin, name)); err != nil || info.Mode()&0o111 == 0 {
			lacks = append(lacks, fmt.Sprintf("the program %s in %s: `make e2e` builds it", name, s.Bin))
		}
	}
	return append(lacks, lab.LacksSpace(needMemory, needDisk)...)
}

// kernelLacks returns the missing parts of the kernel that nodes need beside links.
func kernelLacks() []string {
	var lacks []string
	if raw, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(raw), "\toverlay\n") {
		lacks = append(lacks, "a kernel with overlayfs: modprobe overlay")
	}
	if _, err := hierarchies(); err != nil {
		lacks = append(lacks, fmt.Sprintf("control groups (%v)", err))
	}
	return lacks
}
