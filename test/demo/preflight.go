package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	// The measured memory of the programs, and a third more.
	controlPlaneMemory = 600 << 20
	controllerMemory   = 150 << 20 // and the demo's own two programs
	nodeMemory         = 110 << 20
	podMemory          = 1 << 20
	needDisk           = 256 << 20
	// maxTemp leaves room for a socket's path in the work directory: the
	// kernel allows 107 bytes.
	maxTemp = 45
)

// preflight returns the missing requirements of the machine, each with its remedy. It
// changes nothing.
func preflight(ctx context.Context, s settings, ipv4Only bool) []string {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root, to make network namespaces and links: run it with sudo (sudo -E make demo)")
	} else {
		lacks = append(lacks, kernelLacks(ctx, ipv4Only)...)
	}
	if !s.Check {
		lacks = append(lacks, programLacks(s)...)
	}
	lacks = append(lacks, resourceLacks(s)...)
	if s.Kubeconfig != "" {
		lacks = append(lacks, clusterLacks(ctx, s.Kubeconfig)...)
	}
	return lacks
}

// kernelLacks tries the demo's operations on links in a temporary namespace.
func kernelLacks(ctx context.Context, ipv4Only bool) []string {
	lab, err := netlab.New(ctx, netlab.Config{Nodes: 1, IPv4Only: ipv4Only})
	if err == nil {
		err = lab.Close()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return []string{fmt.Sprintf("the right to make network namespaces and links (%v): run it outside the container, or in one started with --privileged", err)}
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL):
		return []string{fmt.Sprintf("a kernel with veth and bridge links (%v): modprobe veth bridge, or a kernel with CONFIG_NET_NS, CONFIG_VETH, CONFIG_BRIDGE", err)}
	default:
		return []string{fmt.Sprintf("working network namespaces (%v)", err)}
	}
}

func programLacks(s settings) []string {
	programs := []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "podrunner"}
	if s.Kubeconfig == "" {
		programs = append(programs, "kubelab")
	}
	return harness.MissingPrograms(s.Bin, programs...)
}

func resourceLacks(s settings) []string {
	var lacks []string
	memory := controllerMemory + uint64(s.Nodes)*nodeMemory + uint64(s.Pods)*podMemory
	if s.Kubeconfig == "" {
		memory += controlPlaneMemory
	}
	if free, err := freeMemory(); err == nil && free < memory {
		lacks = append(lacks, fmt.Sprintf("memory: %d MB are available and %d MB are needed: end something, or make fewer nodes", free>>20, memory>>20))
	}
	temp := os.TempDir()
	var stat unix.Statfs_t
	if err := unix.Statfs(temp, &stat); err != nil {
		lacks = append(lacks, fmt.Sprintf("a directory for temporary files (%s: %v): set TMPDIR", temp, err))
	} else if free := stat.Bavail * uint64(stat.Bsize); free < needDisk {
		lacks = append(lacks, fmt.Sprintf("disk: %s has %d MB free and %d MB are needed: make room, or set TMPDIR", temp, free>>20, needDisk>>20))
	}
	if len(temp) > maxTemp {
		lacks = append(lacks, fmt.Sprintf("a short directory for temporary files: %s has more than %d bytes, too many for the path of a socket: set TMPDIR=/tmp", temp, maxTemp))
	}
	return lacks
}

// freeMemory returns the kernel's estimate of the memory that is available without
// swapping.
func freeMemory() (uint64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(raw) {
		if rest, ok := strings.CutPrefix(string(line), "MemAvailable:"); ok {
			kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}
