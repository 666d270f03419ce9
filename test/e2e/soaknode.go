package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	// maxHold is how long a damage stays at most, if its end is a matter of a person.
	maxHold = 15 * time.Second
	// maxFreeze is how long a frozen program stands still at most.
	maxFreeze = 20 * time.Second
	// maxAhead is how far the monotonic clock of a daemon is ahead at most.
	maxAhead = 100 * 24 * time.Hour

	kubeletURL = "http://127.0.0.1:10248/healthz"
	proxyURL   = "http://127.0.0.1:10256/healthz"
)

// nodeFaults are the faults of a node. A damage to Fairlead's files, links and rules is not
// undone: the daemon has to repair it.
func (s *soaking) nodeFaults(n *node) []fault {
	ready := n.serves()
	all := []fault{
		{"SIGKILL of fairlead-node", func(ctx context.Context, random *rand.Rand) (look, error) {
			s.scrape(ctx, n)
			s.end(n, fairleadNode)
			pause(ctx, random, maxAway)
			return ready, s.begin(n, n.place().do, fairleadNode)
		}},
		{"SIGSTOP of fairlead-node", func(ctx context.Context, random *rand.Rand) (look, error) {
			return ready, freeze(ctx, random, s.program(n, fairleadNode))
		}},
		{"fairlead-node with a later monotonic clock", func(ctx context.Context, random *rand.Rand) (look, error) {
			s.scrape(ctx, n)
			s.end(n, fairleadNode)
			ahead := time.Duration(random.Int64N(int64(maxAhead)))
			return ready, s.begin(n, n.place().ahead(ahead), fairleadNode)
		}},
		{"SIGKILL of containerd", func(ctx context.Context, _ *rand.Rand) (look, error) {
			s.end(n, containerRuntime)
			return s.nodeReady(n, kubeletURL), nil
		}},
		{"SIGKILL of kubelet", func(ctx context.Context, _ *rand.Rand) (look, error) {
			s.end(n, kubelet)
			return s.nodeReady(n, kubeletURL), nil
		}},
		{"SIGKILL of kube-proxy", func(ctx context.Context, _ *rand.Rand) (look, error) {
			s.end(n, kubeProxy)
			return s.nodeReady(n, proxyURL), nil
		}},
		{"full tmpfs of the state", func(ctx context.Context, random *rand.Rand) (look, error) {
			return ready, n.fillState(ctx, random)
		}},
		{"conflist deleted", func(context.Context, *rand.Rand) (look, error) {
			return s.announced(n), os.Remove(n.conflist())
		}},
		{"conflist overwritten with garbage", func(context.Context, *rand.Rand) (look, error) {
			return s.announced(n), os.WriteFile(n.conflist(), []byte(`{"cniVersion": `), 0o600)
		}},
		{"conflist of another network before ours", func(ctx context.Context, random *rand.Rand) (look, error) {
			return s.announced(n), n.shadow(ctx, random)
		}},
		{"CNI plugin removed", func(context.Context, *rand.Rand) (look, error) {
			plugin := filepath.Join(n.binDir(), "fairlead")
			return exists(plugin), os.Remove(plugin)
		}},
		{"forwarding off", func(ctx context.Context, _ *rand.Rand) (look, error) {
			_, err := n.processes.Run(ctx, n.place().do, "sysctl", "-w", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
			return ready, err
		}},
		{"routes to another node deleted", func(ctx context.Context, _ *rand.Rand) (look, error) {
			return s.routesDeleted(ctx, n)
		}},
		{"nftables deleted", func(ctx context.Context, _ *rand.Rand) (look, error) {
			_, err := n.processes.Run(ctx, n.place().do, "nft", "delete table inet fairlead; delete table arp fairlead; delete table bridge fairlead")
			return both(both(n.has("nft table inet fairlead"), n.has("nft table bridge fairlead")), ready), err
		}},
		{"veth of a pod deleted", func(ctx context.Context, random *rand.Rand) (look, error) {
			return s.vethDeleted(ctx, n, random)
		}},
	}
	if n.clocked {
		all = append(all, fault{"jump of the wall clock of fairlead-node", func(_ context.Context, random *rand.Rand) (look, error) {
			return ready, n.wall().jump(random, maxWall) // it stays wrong until the next jump
		}})
	}
	return all
}

// both is well if two looks are.
func both(a, b look) look {
	return func(ctx context.Context) (string, error) {
		if why, err := a(ctx); why != "" || err != nil {
			return why, err
		}
		return b(ctx)
	}
}

// program returns one of the node's programs.
func (s *soaking) program(n *node, name string) *harness.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.running[name]
}

// end ends one of the node's programs with SIGKILL.
func (s *soaking) end(n *node, name string) {
	p := s.program(n, name)
	s.mu.Lock()
	s.asked[p] = true
	s.mu.Unlock()
	p.Kill()
}

// begin starts one of the node's programs in a place that is the node.
func (s *soaking) begin(n *node, in harness.Place, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.startIn(in, name)
}

// supervise starts a program of the node again when it has ended, as the machine's init
// does. It counts the ends that no fault asked for.
func (s *soaking) supervise(ctx context.Context, n *node, name string) error {
	random := rand.New(rand.NewPCG(s.Seed, 1<<34)) //nolint:gosec // not negative
	for {
		p := s.program(n, name)
		p.Expect()
		select {
		case <-ctx.Done():
			return nil
		case <-p.Done():
		}
		s.mu.Lock()
		if !s.asked[p] {
			s.restarts[name]++
		}
		s.mu.Unlock()
		pause(ctx, random, maxAway)
		if err := s.begin(n, n.place().do, name); err != nil {
			return err
		}
	}
}

// freeze stops a program for a while, and lets it go on.
func freeze(ctx context.Context, random *rand.Rand, p *harness.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, random, maxFreeze)
	return p.Signal(syscall.SIGCONT)
}

// ahead is the place with a monotonic clock that is ahead of the machine's, in a time
// namespace of its own. The kernel has no such namespace for the wall clock.
func (p place) ahead(by time.Duration) harness.Place {
	return func(fn func() error) error {
		return p.do(func() error {
			if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
				return fmt.Errorf("make a time namespace: %w", err)
			}
			offsets := fmt.Sprintf("monotonic %d 0\nboottime %[1]d 0\n", int64(by.Seconds()))
			file := fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid())
			if err := os.WriteFile(file, []byte(offsets), 0); err != nil {
				return fmt.Errorf("set the clock of a time namespace: %w", err)
			}
			return fn() // a process that is started here enters the namespace
		})
	}
}

// serves looks whether the daemon of the node is ready.
func (n *node) serves() look {
	return func(ctx context.Context) (string, error) { return n.daemonReady(ctx), nil }
}

// nodeReady looks whether a program of a node serves and the node is Ready.
func (s *soaking) nodeReady(n *node, url string) look {
	return func(ctx context.Context) (string, error) {
		if _, err := get(ctx, n.machine.Namespace, url); err != nil {
			return "", err
		}
		condition, err := s.ready(ctx, n)
		if condition.Status == corev1.ConditionTrue {
			return "", err
		}
		return fmt.Sprintf("%s: Ready is %s: %s", n.name, condition.Status, condition.Message), err
	}
}

// announced looks whether the conflist is ours, and the node Ready.
func (s *soaking) announced(n *node) look {
	return func(ctx context.Context) (string, error) {
		if err := checkConflist(n); err != nil {
			return "", err
		}
		return s.nodeReady(n, kubeletURL)(ctx)
	}
}

// exists looks whether a file exists.
func exists(path string) look {
	return func(context.Context) (string, error) {
		_, err := os.Stat(path)
		return "", err
	}
}

// has looks whether a thing, in the words of netlab.State, is in the node's network.
func (n *node) has(thing string) look {
	return func(context.Context) (string, error) {
		state, err := n.machine.State()
		if slices.Contains(state.All(), thing) {
			return "", err
		}
		return n.name + " has no " + thing, err
	}
}

// fillState fills the tmpfs of the node's /run, where Fairlead and containerd keep their
// state, for a while.
func (n *node) fillState(ctx context.Context, random *rand.Rand) error {
	const ballast = "/run/ballast"
	var full unix.Statfs_t
	err := n.place().do(func() error {
		if err := unix.Statfs("/run", &full); err != nil {
			return fmt.Errorf("size of /run: %w", err)
		}
		used := (full.Blocks - full.Bfree) * uint64(full.Bsize) //nolint:gosec // a size
		if err := unix.Mount("", "/run", "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used+1<<20)); err != nil {
			return fmt.Errorf("shrink /run: %w", err)
		}
		err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("fill /run: %w; want that it is full", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	pause(ctx, random, maxHold)
	return n.place().do(func() error {
		size := fmt.Sprintf("size=%d", full.Blocks*uint64(full.Bsize)) //nolint:gosec // a size
		return errors.Join(unix.Mount("", "/run", "", unix.MS_REMOUNT, size), os.Remove(ballast))
	})
}

// shadow puts the configuration of a network whose plugin does not exist before ours, for a
// while.
func (n *node) shadow(ctx context.Context, random *rand.Rand) error {
	other := filepath.Join(n.confDir(), "00-other.conflist")
	content := `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "no-such-plugin"}]}`
	if err := os.WriteFile(other, []byte(content), 0o600); err != nil {
		return err
	}
	pause(ctx, random, maxHold)
	return os.Remove(other)
}

// routesDeleted deletes the routes to the blocks of other nodes. All blocks that are still
// routed have to come back.
func (s *soaking) routesDeleted(ctx context.Context, n *node) (look, error) {
	var blocks map[string]bool
	err := s.try(ctx, func(ctx context.Context) (err error) {
		blocks, err = s.blocks(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	handle, err := n.machine.Netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	routes, err := handle.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", n.name, err)
	}
	for _, route := range routes {
		if route.Dst == nil || !blocks[route.Dst.String()] {
			continue
		}
		if err := handle.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) { // the daemon may be faster
			return nil, fmt.Errorf("delete route %v of %s: %w", route, n.name, err)
		}
	}
	return func(ctx context.Context) (string, error) {
		now, err := s.blocks(ctx)
		if err != nil {
			return "", err
		}
		state, err := n.machine.State()
		for block := range blocks {
			routed := len(withoutBlocks(state.Routes, map[string]bool{block: true})) < len(state.Routes) // its own blocks are unreachable
			if now[block] && !routed {
				return n.name + " has no route to " + block, err
			}
		}
		return "", err
	}, nil
}

// vethDeleted deletes the link of a running pod. Its network is lost for good: Fairlead has
// to report it, and its deletion has to succeed.
func (s *soaking) vethDeleted(ctx context.Context, n *node, random *rand.Rand) (look, error) {
	var pod corev1.Pod
	err := s.becomes(ctx, recoverWithin, func(ctx context.Context) (string, error) {
		pods, err := s.pods(ctx)
		if err != nil {
			return "", err
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName != n.name || p.DeletionTimestamp != nil || !isReady(&p)
		})
		if len(pods) == 0 {
			return "no pod on " + n.name + " is ready", nil
		}
		pod = pods[random.IntN(len(pods))]
		err = n.cut(string(pod.UID))
		if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return "", fmt.Errorf("pod %s is just ending: %w", pod.Name, err)
		}
		return "", err
	})
	if err != nil {
		return nil, err
	}
	if err := s.becomes(ctx, recoverWithin, func(ctx context.Context) (string, error) { return s.lossReported(ctx, pod) }); err != nil {
		return nil, fmt.Errorf("report of the loss: %w", err)
	}
	return func(ctx context.Context) (string, error) { return s.podGone(ctx, pod) }, nil
}

// lossReported looks whether the PodAttachment of a pod without a network has a condition
// that is false, or the pod has ended meanwhile.
func (s *soaking) lossReported(ctx context.Context, pod corev1.Pod) (string, error) {
	list := &v1alpha1.PodAttachmentList{}
	if err := s.List(ctx, list, client.InNamespace(pod.Namespace)); err != nil {
		return "", err
	}
	for _, pa := range list.Items {
		if pa.Spec.PodUID == pod.UID && pa.DeletionTimestamp == nil && meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionReady) {
			return "PodAttachment " + pa.Name + " is still Ready", nil
		}
	}
	return "", nil
}

// cut deletes the default interface of a pod by its host end.
func (n *node) cut(uid string) error {
	ns, err := n.sandboxOf(uid)
	if err != nil {
		return err
	}
	defer ns.Close()
	peer, err := peerOf(ns, "eth0")
	if err != nil {
		return err
	}
	handle, err := n.machine.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByIndex(peer)
	if err != nil {
		return err
	}
	return handle.LinkDel(link)
}

func peerOf(ns *netlab.Namespace, name string) (index int, err error) {
	handle, err := ns.Netlink()
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().ParentIndex, nil
}
