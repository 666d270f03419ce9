package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// The programs of a node.
const (
	kubelet          = "kubelet"
	containerRuntime = "containerd"
	kubeProxy        = "kube-proxy"
	fairleadNode     = "fairlead-node"
)

// node is a machine: a network namespace, a mount namespace with a /run, a
// /var/lib and a /var/log of its own, and a control group.
type node struct {
	name, dir, programs, cgroup string
	// images is the archive to import at the first boot.
	images    string
	podRanges []netip.Prefix
	// kubeletConfig and proxyConfig are the kubeconfigs of its programs.
	kubeletConfig, proxyConfig string
	dns                        []string // the addresses of the cluster's DNS

	processes *harness.Processes
	machine   *netlab.Machine
	mnt       *os.File // of this boot
	bootID    string
	// clocked is true if fairlead-node is of hack/build-clocked.sh, with the clock wall.
	clocked  bool
	baseline netlab.State
	running  map[string]*harness.Process
	// killed is true if containerd was killed. It then forgets a namespace that it was
	// about to give to a sandbox, or a file at which it was about to mount one.
	killed bool
	// forgotten are the namespaces without a network that it forgot.
	forgotten []string
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }
func (n *node) binDir() string          { return n.file("cni/bin") }   // its /opt/cni/bin
func (n *node) confDir() string         { return n.file("cni/net.d") } // its /etc/cni/net.d
func (n *node) conflist() string        { return filepath.Join(n.confDir(), "10-fairlead.conflist") }
func (n *node) account() string         { return n.file("fairlead.kubeconfig") }
func (n *node) wall() wallClock         { return wallClock(n.file("wall")) }
func (n *node) place() place            { return place{net: n.machine.Namespace, mnt: n.mnt, host: n.name} }

// addresses are those on its link, IPv4 first.
func (n *node) addresses() []netip.Addr {
	var out []netip.Addr
	for _, own := range n.machine.Addresses() {
		out = append(out, own.Addr())
	}
	return out
}

// prepare creates the node's disk, which outlives a boot.
func (n *node) prepare() error {
	for _, dir := range []string{"lib/kubelet", "log", "tmp", "cni/bin", "cni/net.d", "opt/cni/bin", "etc/cni/net.d"} {
		if err := os.MkdirAll(n.file(dir), 0o755); err != nil {
			return fmt.Errorf("disk of %s: %w", n.name, err)
		}
	}
	return errors.Join(n.wall().set(0), n.writeConfigs())
}

// boot gives the node the mounts and the boot ID of a new boot. Nothing runs
// yet.
func (n *node) boot() error {
	if err := n.newBootID(); err != nil {
		return err
	}
	if err := makeGroups(n.cgroup); err != nil {
		return err
	}
	n.running = map[string]*harness.Process{}
	var err error
	if n.baseline, err = n.machine.State(); err != nil {
		return fmt.Errorf("look at %s: %w", n.name, err)
	}
	// The namespace exists as long as the file is open or a process is in it.
	return n.machine.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("part the mounts of %s from the machine's: %w", n.name, err)
		}
		// `ip netns add` mounts /run/netns for good, the laboratory mounts /run over it or
		// below it. containerd finds them in the table of mounts even below another /run.
		for _, dir := range []string{"/run/netns", "/run", "/run/netns"} {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmount %s of %s: %w", dir, n.name, err)
			}
		}
		mounts := []struct {
			from, to, kind string
			flags          uintptr
			data           string
		}{
			// The mounts of pods' namespaces propagate from containerd to the daemon's
			// container.
			{"tmpfs", "/run", "tmpfs", 0, ""},
			{"", "/run", "", unix.MS_SHARED, ""},
			{n.file("lib"), "/var/lib", "", unix.MS_BIND, ""},
			{n.file("log"), "/var/log", "", unix.MS_BIND, ""},
			{n.file("boot_id"), bootIDFile, "", unix.MS_BIND, ""},
			// The machine's /opt, with directories to mount at that it may lack.
			{"overlay", "/opt", "overlay", 0, "lowerdir=" + n.file("opt") + ":/opt"},
			{"overlay", "/etc", "overlay", 0, "lowerdir=" + n.file("etc") + ":/etc"},
			{n.binDir(), "/opt/cni/bin", "", unix.MS_BIND, ""},
			{n.confDir(), "/etc/cni/net.d", "", unix.MS_BIND, ""},
			// The mounts of pods' volumes propagate from kubelet to containers.
			{kubeletState, kubeletState, "", unix.MS_BIND, ""},
			{"", kubeletState, "", unix.MS_SHARED, ""},
		}
		for _, m := range mounts {
			if err := unix.Mount(m.from, m.to, m.kind, m.flags, m.data); err != nil {
				return fmt.Errorf("mount %s of %s: %w", m.to, n.name, err)
			}
		}
		var err error
		n.mnt, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
}

// bootIDFile has a value that is different after each boot (random(4)).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// newBootID chooses the ID of a boot. The first is this machine's, because containers
// have a /proc without the node's mounts: a program in a container cannot see another ID.
func (n *node) newBootID() error {
	if n.bootID == "" {
		raw, err := os.ReadFile(bootIDFile)
		if err != nil {
			return err
		}
		n.bootID = strings.TrimSpace(string(raw))
	} else {
		var raw [16]byte
		_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
		n.bootID = fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
	}
	return os.WriteFile(n.file("boot_id"), []byte(n.bootID+"\n"), 0o644)
}

// start starts one of the node's programs.
func (n *node) start(name string) error { return n.startIn(n.place().do, name) }

// startIn starts one of the node's programs in a place that is the node, with further
// settings.
func (n *node) startIn(in harness.Place, name string) error {
	var args []string
	switch name {
	case containerRuntime:
		args = []string{"containerd/containerd", "--config", n.file("containerd.toml")}
	case kubelet:
		args = []string{
			"kubelab", "kubelet", "--config", n.file("kubelet.yaml"), "--kubeconfig", n.kubeletConfig,
			"--hostname-override", n.name, "--node-ip", join(n.addresses()),
			"--root-dir", kubeletState, "--cert-dir", n.file("pki"), "-v=2",
		}
	case kubeProxy:
		args = []string{"kubelab", "kube-proxy", "--config", n.file("kube-proxy.yaml")}
	case fairleadNode:
		args = []string{n.daemon(), "run", "--config", n.file("fairlead.yaml"), "-v", "1"}
	}
	p, err := n.processes.Command(n.name+"-"+name, filepath.Join(n.programs, args[0]), args[1:]...)
	if err != nil {
		return err
	}
	if name == fairleadNode && n.clocked {
		n.wall().give(p)
	}
	if err := n.processes.Start(in, p); err != nil {
		return err
	}
	n.running[name] = p
	return nil
}

// daemon is the program of fairlead-node, below the directory of the programs.
func (n *node) daemon() string {
	if n.clocked {
		return filepath.Join(clockedDir, "fairlead-node")
	}
	return "fairlead-node"
}

// startRuntime starts containerd, waits until it serves and gives it the images.
func (n *node) startRuntime(ctx context.Context) error {
	if err := n.start(containerRuntime); err != nil {
		return err
	}
	ctr := filepath.Join(n.programs, "containerd/ctr")
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, stepTimeout, true, func(ctx context.Context) (bool, error) {
		_, last = n.processes.Run(ctx, n.place().do, ctr, "version")
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: wait for containerd: %w", n.name, errors.Join(context.Cause(ctx), last))
	}
	_, err = n.processes.Run(ctx, n.place().do, ctr, "-n", "k8s.io", "images", "import", n.images)
	return err
}

// powerOff ends everything on the node at once, like a power cut: memory is lost, and the
// disk stays.
func (n *node) powerOff(ctx context.Context) error {
	for _, p := range n.running {
		p.Expect()
	}
	var left []int
	err := wait.PollUntilContextTimeout(ctx, pollInterval/10, stepTimeout, true, func(context.Context) (bool, error) {
		var err error
		left, err = n.pids()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("%s: end processes %v: %w", n.name, left, err)
	}
	for _, p := range n.running {
		<-p.Done()
	}
	n.running = nil
	return errors.Join(n.mnt.Close(), removeGroups(ctx, n.cgroup))
}

// processes are those in the node's control group and its mount namespace:
// pods, and what runs them.
func (n *node) pids() ([]int, error) {
	pids, err := groupProcesses(n.cgroup)
	if err != nil {
		return nil, err
	}
	var own unix.Stat_t
	if err := unix.Fstat(int(n.mnt.Fd()), &own); err != nil {
		return nil, fmt.Errorf("mount namespace of %s: %w", n.name, err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		var ns unix.Stat_t
		if unix.Stat(file, &ns) != nil || ns.Ino != own.Ino {
			continue // it has ended, or is not ours
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(file))))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}
