package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// Node is a machine with fairlead-node and podrunner.
type Node struct {
	*netlab.Machine
	// KubeName is the name of its Node.
	KubeName string
	// Dir has everything of the node, on tmpfs, but for the directory of state.
	Dir            string
	Daemon, Runner *harness.Process
}

// StateDir has the daemon's records, in the /run of the namespaces.
func (n *Node) StateDir() string { return "/run/fairlead-" + n.Name }

// RunnerDir has the records of podrunner.
func (n *Node) RunnerDir() string { return filepath.Join(n.Dir, "runner") }

// NetnsDir has the network namespaces of pods.
func (n *Node) NetnsDir() string { return filepath.Join(n.Dir, "netns") }

// BinDir has the CNI plugins.
func (n *Node) BinDir() string { return filepath.Join(n.Dir, "bin") }

// ConfDir has the network configurations of the runtime.
func (n *Node) ConfDir() string { return filepath.Join(n.Dir, "net.d") }

// NewNode returns the node of a machine, with its directories.
func (c *Cluster) NewNode(m *netlab.Machine, kubeName string) (*Node, error) {
	n := &Node{Machine: m, KubeName: kubeName, Dir: filepath.Join(c.Dir.Tmpfs(), m.Name)}
	for _, dir := range []string{n.Dir, n.StateDir(), n.BinDir(), n.ConfDir(), n.NetnsDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("directories of %s: %w", kubeName, err)
		}
	}
	return n, nil
}

// DaemonName is the name of the node's daemon in logs and of its configuration.
func (n *Node) DaemonName() string { return "fairlead-node-" + n.Name }

// DaemonSettings returns the least configuration of the node's daemon.
func (c *Cluster) DaemonSettings(n *Node, kubeconfig string) map[string]any {
	return map[string]any{
		"nodeName": n.KubeName, "kubeconfig": kubeconfig, "stateDir": n.StateDir(),
		"cni": map[string]any{"binDir": n.BinDir(), "confDir": n.ConfDir(), "pluginSource": filepath.Join(c.Bin, "fairlead-cni")},
	}
}

// RunnerArgs returns the command line of the node's podrunner, with further flags.
func (n *Node) RunnerArgs(kubeconfig string, flags ...string) []string {
	return append([]string{
		"--kubeconfig", kubeconfig, "--node", n.KubeName, "--cni-bin-dir", n.BinDir(), "--cni-conf-dir", n.ConfDir(),
		"--netns-dir", n.NetnsDir(), "--state-dir", n.RunnerDir(),
	}, flags...)
}

// PodFiles lists the files of pods on the node.
func (n *Node) PodFiles() ([]string, error) {
	var left []string
	for what, pattern := range map[string]string{
		"network namespace":     filepath.Join(n.NetnsDir(), "*"),
		"sandbox record":        filepath.Join(n.RunnerDir(), "sandboxes", "*"),
		"cached CNI result":     filepath.Join(n.RunnerDir(), "cni", "results", "*"),
		"attachment record":     filepath.Join(n.StateDir(), "attachments", "*"),
		"DEL that was not made": filepath.Join(n.StateDir(), "del", "*"),
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			left = append(left, n.KubeName+": "+what+" "+filepath.Base(file))
		}
	}
	return left, nil
}

// NotReady returns the reason why no pods may be placed on a Node, "" if they may. Taints with the
// keys in tolerated do not count.
func NotReady(node *corev1.Node, tolerated ...string) string {
	reason := "not there yet"
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		reason = c.Message
		// A condition that the control plane made up for the node does not count.
		if c.Status == corev1.ConditionTrue && c.Reason == "KubeletReady" {
			reason = ""
		}
	}
	for _, taint := range node.Spec.Taints {
		if reason == "" && !slices.Contains(tolerated, taint.Key) {
			reason = "tainted " + taint.Key
		}
	}
	return reason
}
