package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/test/netlab"
)

// host is the part of the machine's state that the test could change.
type host struct {
	netlab.State
	// Files are the entries of the directories to which kubelet, containerd, CNI and
	// Fairlead write on a machine of their own.
	Files []string
}

func readHost() (host, error) {
	var h host
	ns, err := netlab.Current()
	if err != nil {
		return h, err
	}
	defer ns.Close()
	if h.State, err = ns.State(); err != nil {
		return h, fmt.Errorf("look at this machine: %w", err)
	}
	for _, pattern := range []string{
		"/etc/cni/*", "/opt/cni/*", "/run/netns/*", "/run/containerd/*", "/run/fairlead/*", "/var/lib/kubelet/*",
		"/var/lib/containerd/*", "/var/lib/cni/*", "/var/log/pods/*", "/var/log/containers/*",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return h, err
		}
		h.Files = append(h.Files, files...)
	}
	return h, nil
}

// checkHost returns an error if the test left anything on the machine. Everything runs in
// namespaces, so it ignores new links and routes unless they have names of ours.
func checkHost(before host, p plan) error {
	after, err := readHost()
	if err != nil {
		return err
	}
	var left []string
	for _, item := range after.Since(before.State).All() {
		if strings.Contains(item, "fairlead") || strings.Contains(item, " "+netlab.PortPrefix) || strings.Contains(item, " "+netlab.BridgeName) || strings.Contains(item, "kube-proxy") {
			left = append(left, item)
		}
	}
	for _, file := range after.Files {
		// Other tests on this machine may make namespaces with names.
		if !slices.Contains(before.Files, file) && !strings.HasPrefix(file, "/run/netns/") || strings.HasPrefix(file, "/run/netns/cni-") {
			left = append(left, "file "+file)
		}
	}
	rest, err := p.Left()
	if err != nil {
		return err
	}
	left = append(left, rest...)
	groups, err := groupProcesses(p.cgroup())
	if err != nil || len(groups) > 0 {
		left = append(left, fmt.Sprintf("processes %v in the control group (%v)", groups, err))
	}
	if len(left) > 0 {
		return fmt.Errorf("the test left on this machine: %s", strings.Join(left, ", "))
	}
	return nil
}
