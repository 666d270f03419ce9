package lab

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

// maxTemp leaves room for a socket's path in the work directory: the kernel allows 107 bytes.
const maxTemp = 45

// LacksKernel returns the missing requirements of network namespaces and links, each with its
// remedy. It tries them in a temporary namespace. command is the one to give as root.
func LacksKernel(ctx context.Context, command string, ipv4Only bool) []string {
	if os.Geteuid() != 0 {
		return []string{"root, to make network namespaces and links: run it with sudo (sudo -E " + command + ")"}
	}
	if !ipv4Only && !netlab.HasIPv6() {
		return []string{"a kernel with IPv6: boot without ipv6.disable=1, or modprobe ipv6"}
	}
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

// LacksTool returns a program of the machine that is missing, with its Debian package.
func LacksTool(program, pkg string) []string {
	if _, err := exec.LookPath(program); err != nil {
		return []string{fmt.Sprintf("the program %s: on Debian and Ubuntu, apt-get install -y --no-install-recommends %s", program, pkg)}
	}
	return nil
}

// LacksSpace returns the missing requirements of space, each with its remedy: memory and disk in
// bytes, and a short directory for temporary files.
func LacksSpace(memory, disk uint64) []string {
	var lacks []string
	if free, err := freeMemory(); err == nil && free < memory {
		lacks = append(lacks, fmt.Sprintf("memory: %d MB are available and %d MB are needed: end something, or ask for less", free>>20, memory>>20))
	}
	temp := os.TempDir()
	var stat unix.Statfs_t
	if err := unix.Statfs(temp, &stat); err != nil {
		lacks = append(lacks, fmt.Sprintf("a directory for temporary files (%s: %v): set TMPDIR", temp, err))
	} else if free := stat.Bavail * uint64(stat.Bsize); free < disk {
		lacks = append(lacks, fmt.Sprintf("disk: %s has %d MB free and %d MB are needed: make room, or set TMPDIR", temp, free>>20, disk>>20))
	}
	if len(temp) > maxTemp || !filepath.IsAbs(temp) {
		lacks = append(lacks, fmt.Sprintf("a short and absolute directory for temporary files: %s must have %d bytes at most, for the path of a socket: set TMPDIR=/tmp", temp, maxTemp))
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
	for line := range strings.Lines(string(raw)) {
		var kilobytes uint64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kilobytes); err == nil {
			return kilobytes << 10, nil
		}
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}
