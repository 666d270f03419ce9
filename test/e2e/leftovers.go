package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/netlab"
)

// nothingLeft waits until all pods of ours are gone, from the cluster and from
// the nodes, and audits the addresses.
func (w *testbed) nothingLeft(ctx context.Context) error {
	err := w.await(ctx, "the pods to go", func(ctx context.Context) (string, error) {
		pods, err := w.pods(ctx)
		if len(pods) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left, %s for one", len(pods), pods[0].Name), err
	})
	if err != nil {
		return err
	}
	err = w.await(ctx, "what the pods leave to go", func(ctx context.Context) (string, error) {
		list := &v1alpha1.PodAttachmentList{}
		if err := w.List(ctx, list); err != nil {
			return "", err
		}
		var left []string
		for _, item := range list.Items {
			left = append(left, "PodAttachment "+item.Name)
		}
		more, err := w.leftOnNodes(ctx)
		return summary(append(left, more...)), err
	})
	if err != nil {
		return err
	}
	w.Say("no PodAttachment is left, and on the nodes no link, route, namespace, nft table or element, cgroup, record or cached result")
	for _, n := range w.nodes {
		if len(n.forgotten) > 0 {
			w.Say("but %d network namespaces on %s, which a killed containerd forgot before any plugin saw them: %s", len(n.forgotten), n.name, summary(n.forgotten))
		}
	}
	return w.audit(ctx)
}

// leftOnNodes lists what pods left on the nodes.
func (w *testbed) leftOnNodes(ctx context.Context) ([]string, error) {
	system, err := w.systemGroups(ctx)
	if err != nil {
		return nil, err
	}
	blocks, err := w.blocks(ctx)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, n := range w.nodes {
		more, err := n.leftovers(ctx, system, blocks)
		if err != nil {
			return nil, err
		}
		left = append(left, more...)
	}
	return left, nil
}

// summary returns the first few items and the number of the others.
func summary(items []string) string {
	const most = 8
	text := strings.Join(items[:min(most, len(items))], "; ")
	if more := len(items) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// audit runs the operator's command that proves that every address is explained.
func (w *testbed) audit(ctx context.Context) error {
	out, err := w.Programs.Run(ctx, w.Net.Switch.Do, filepath.Join(w.programs(), "fairlead"), "--kubeconfig", w.Admin, "ipam", "audit")
	if err != nil {
		return err
	}
	w.Say("fairlead ipam audit: %s", strings.TrimSpace(out))
	return nil
}

// ofNode reports whether a link or table stays on a node as long as Fairlead and
// kube-proxy run there.
func ofNode(item string) bool {
	for _, prefix := range []string{"link fairlead", "route 169.254.1.1/32 dev lo", "nft table inet fairlead", "nft table arp fairlead", "nft table ip fairlead", "nft table ip6 fairlead", "nft table bridge fairlead", "nft table ip kube-proxy", "nft table ip6 kube-proxy"} {
		if strings.HasPrefix(item, prefix) {
			return true
		}
	}
	return false
}

// leftovers lists the things on a node that must not exist without pods. It ignores the
// control groups of Fairlead's own pods and the routes to blocks.
func (n *node) leftovers(ctx context.Context, system, blocks map[string]bool) ([]string, error) {
	state, err := n.machine.State()
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", n.name, err)
	}
	news := state.Since(n.baseline)
	news.Routes = withoutBlocks(news.Routes, blocks)
	left := slices.DeleteFunc(news.All(), ofNode)
	namespaces, err := n.namespaces()
	if err != nil {
		return nil, err
	}
	left = append(left, namespaces...)
	elements, err := n.elements(ctx)
	if err != nil {
		return nil, err
	}
	left = append(left, elements...)
	for what, pattern := range map[string]string{
		"cached CNI result":     "/var/lib/cni/results/*",
		"attachment record":     "/run/fairlead/attachments/*",
		"addresses of another":  "/run/fairlead/addresses/*",
		"DEL that was not made": "/run/fairlead/del/*",
		"address of host-local": "/var/lib/cni/networks/*/10.*",
	} {
		files, err := n.glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			left = append(left, what+" "+filepath.Base(file))
		}
	}
	groups, err := n.podGroups(system)
	if err != nil {
		return nil, err
	}
	left = append(left, groups...)
	for i := range left {
		left[i] = n.name + ": " + left[i]
	}
	return left, nil
}

// namespaces returns the network namespaces of sandboxes. A namespace that a killed
// containerd forgets was never given to a plugin, so it has no eth0; n.forgotten has
// these.
func (n *node) namespaces() ([]string, error) {
	files, err := n.glob("/run/netns/*")
	if err != nil {
		return nil, err
	}
	var out []string
	n.forgotten = nil
	for _, file := range files {
		var inside netlab.State
		err := n.place().do(func() error {
			ns, err := netlab.OpenNamespace(file)
			if err != nil {
				return err
			}
			inside, err = ns.State()
			return errors.Join(err, ns.Close())
		})
		if n.killed && (err != nil || !slices.Contains(inside.Links, "eth0")) {
			n.forgotten = append(n.forgotten, filepath.Base(file))
			continue
		}
		out = append(out, fmt.Sprintf("network namespace %s with %s", filepath.Base(file), strings.Join(inside.Links, ", ")))
	}
	return out, nil
}

// glob looks for files as the node sees them.
func (n *node) glob(pattern string) (files []string, err error) {
	err = n.place().do(func() error {
		files, err = filepath.Glob(pattern)
		return err
	})
	return files, err
}

// podGroups returns the control groups of pods, except some.
func (n *node) podGroups(but map[string]bool) ([]string, error) {
	seen := map[string]bool{}
	err := walkGroups(n.cgroup, func(dir string) error {
		if name := filepath.Base(dir); strings.HasPrefix(name, "pod") && !but[name] {
			seen["control group "+name] = true
		}
		return nil
	})
	var out []string
	for name := range seen {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, err
}

// uninstallation removes Fairlead from the nodes by the operator's guide: pods first,
// then the daemon, then the installed files. In the end the nodes are as they were.
func (w *testbed) uninstallation(ctx context.Context) error {
	for _, n := range w.nodes {
		if err := n.running[fairleadNode].Stop(); err != nil {
			return err
		}
		if err := w.cleanUp(ctx, n); err != nil {
			return err
		}
	}
	return w.asBefore(ctx)
}

// cleanUp removes the things that the daemon, which has ended, and kube-proxy made on a
// node.
func (w *testbed) cleanUp(ctx context.Context, n *node) error {
	if err := w.stopProxy(ctx, n); err != nil {
		return err
	}
	if err := w.removeDaemon(ctx, n); err != nil {
		return err
	}
	// The plugin stores a DEL that the runtime has begun a moment later.
	err := w.await(ctx, "the plugin to end", func(context.Context) (string, error) { return n.pluginRuns() })
	if err != nil {
		return err
	}
	return w.removeDaemon(ctx, n)
}

// stopProxy ends kube-proxy and removes its rules.
func (w *testbed) stopProxy(ctx context.Context, n *node) error {
	n.running[kubeProxy].Kill() // it does not end in order
	_, err := w.Programs.Run(ctx, n.place().do, filepath.Join(n.programs, "kubelab"), "kube-proxy", "--config", n.file("kube-proxy.yaml"), "--cleanup")
	return err
}

func (w *testbed) removeDaemon(ctx context.Context, n *node) error {
	_, err := w.Programs.Run(ctx, n.place().do, filepath.Join(n.programs, "fairlead-node"), "cleanup", "--cni", "--config", n.file("fairlead.yaml"))
	return err
}

// pluginRuns returns the process on the node that is the CNI plugin, or "".
func (n *node) pluginRuns() (string, error) {
	pids, err := n.pids()
	if err != nil {
		return "", err
	}
	for _, pid := range pids {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && strings.HasPrefix(filepath.Base(exe), "fairlead ") { // "(deleted)" follows
			return fmt.Sprintf("%s: %s, process %d", n.name, exe, pid), nil
		}
	}
	return "", nil
}

// asBefore compares the nodes with their state before anything was installed.
func (w *testbed) asBefore(ctx context.Context) error {
	if err := w.await(ctx, "the nodes to lose their network", w.nodesAre(corev1.ConditionFalse)); err != nil {
		return err
	}
	for _, n := range w.nodes {
		state, err := n.machine.State()
		if err != nil {
			return err
		}
		left := append(state.Since(n.baseline).All(), n.baseline.Since(state).All()...)
		for _, pattern := range []string{n.binDir() + "/*", n.confDir() + "/*", "/run/fairlead/*"} {
			files, err := n.glob(pattern)
			if err != nil {
				return err
			}
			left = append(left, files...)
		}
		if len(left) > 0 {
			return fmt.Errorf("%s is not as it was before the installation: %s", n.name, summary(left))
		}
	}
	w.Say("the nodes are as they were before, and not Ready")
	return nil
}
