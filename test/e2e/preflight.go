package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	// needMemory is the measured memory with 30 pods, and a third more.
	needMemory = 3 << 30
	needDisk   = 512 << 20
	// maxTemp leaves room for a socket's path in the work directory: the kernel
	// allows 107 bytes.
	maxTemp = 45
)

// preflight returns the missing requirements of the machine, each with its remedy. It
// changes nothing.
func preflight(s settings) []string {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root, to make nodes: run it with sudo (sudo -E make e2e)")
	} else {
		lacks = append(lacks, kernelLacks()...)
	}
	for program, pkg := range map[string]string{"runc": "runc", "nft": "nftables"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, fmt.Sprintf("the program %s: on Debian and Ubuntu, apt-get install -y --no-install-recommends %s", program, pkg))
		}
	}
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
	return append(lacks, resourceLacks()...)
}

// kernelLacks tries the test's operations in a temporary namespace.
func kernelLacks() []string {
	var lacks []string
	lab, err := netlab.New(context.Background(), netlab.Config{Nodes: 1})
	if err == nil {
		err = lab.Close()
	}
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return []string{fmt.Sprintf("the right to make network namespaces and links (%v): run it outside the container, or in one started with --privileged", err)}
	case err != nil:
		lacks = append(lacks, fmt.Sprintf("a kernel with network namespaces, veth and bridge links, and IPv6 (%v)", err))
	}
	if raw, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(raw), "\toverlay\n") {
		lacks = append(lacks, "a kernel with overlayfs: modprobe overlay")
	}
	if _, err := hierarchies(); err != nil {
		lacks = append(lacks, fmt.Sprintf("control groups (%v)", err))
	}
	return lacks
}

func resourceLacks() []string {
	var lacks []string
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			var kib int
			if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil && kib<<10 < needMemory {
				lacks = append(lacks, fmt.Sprintf("%d GiB of free memory; there are %d MiB", needMemory>>30, kib>>10))
			}
		}
	}
	temp := os.TempDir()
	var disk unix.Statfs_t
	if err := unix.Statfs(temp, &disk); err != nil {
		lacks = append(lacks, fmt.Sprintf("a directory for temporary files: %s: %v; set TMPDIR", temp, err))
	} else if free := disk.Bavail * uint64(disk.Bsize); free < needDisk {
		lacks = append(lacks, fmt.Sprintf("%d MiB of disk in %s, there are %d; set TMPDIR", needDisk>>20, temp, free>>20))
	}
	if len(temp) > maxTemp || !filepath.IsAbs(temp) {
		lacks = append(lacks, fmt.Sprintf("an absolute and shorter path for temporary files than %s (%d bytes at most, for sockets); set TMPDIR", temp, maxTemp))
	}
	return lacks
}
