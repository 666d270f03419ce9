package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// testbed is the laboratory in which the demo runs.
type testbed struct {
	plan
	harness.Reporter
	processes *harness.Processes

	lab     *netlab.Lab
	nodes   []*labNode
	kube    *kube
	control *harness.Process // the controller
	joined  bool             // objects of this run may be in the cluster
}

// labNode is one node.
type labNode struct {
	*netlab.Machine
	// kubeName is the name of its Node.
	kubeName   string
	kubeconfig string
	// dir holds everything of the node, on tmpfs.
	dir      string
	baseline netlab.State
	daemon   *harness.Process
	runner   *harness.Process
}

func (n *labNode) stateDir() string   { return "/run/fairlead-" + n.Name }
func (n *labNode) runnerDir() string  { return filepath.Join(n.dir, "runner") }
func (n *labNode) netnsDir() string   { return filepath.Join(n.dir, "netns") }
func (n *labNode) binDir() string     { return filepath.Join(n.dir, "bin") }
func (n *labNode) confDir() string    { return filepath.Join(n.dir, "net.d") }
func (n *labNode) configFile() string { return filepath.Join(n.dir, "node.yaml") }

// ovsdbSocket is the socket of the stand-in of Open vSwitch, if the node has one.
func (n *labNode) ovsdbSocket() string { return filepath.Join(n.dir, "ovsdb.sock") }

// build creates the nodes and the connection to the API server.
func (w *testbed) build(ctx context.Context) error {
	var err error
	w.lab, err = netlab.New(ctx, netlab.Config{Nodes: w.Nodes, Here: true, IPv4Only: w.IPv4Only})
	if err != nil {
		return err
	}
	for i, machine := range w.lab.Nodes {
		node := &labNode{Machine: machine, kubeName: machine.Name, dir: filepath.Join(w.Tmpfs(), machine.Name)}
		if w.Kubeconfig != "" {
			node.kubeName = fmt.Sprintf("demo-%s-%d", w.ID, i+1)
		}
		for _, dir := range []string{node.dir, node.stateDir(), node.binDir(), node.confDir(), node.netnsDir()} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return fmt.Errorf("directories of %s: %w", node.kubeName, err)
			}
		}
		if node.baseline, err = node.State(); err != nil {
			return fmt.Errorf("look at %s: %w", node.kubeName, err)
		}
		w.nodes = append(w.nodes, node)
	}
	w.Say("%d nodes on one link: %s", w.Nodes, strings.Join(nodeWords(w.lab.Nodes), ", "))
	if w.Kubeconfig != "" {
		return w.reachCluster(ctx)
	}
	return w.startControlPlane(ctx)
}

func nodeWords(machines []*netlab.Machine) []string {
	var out []string
	for _, m := range machines {
		out = append(out, fmt.Sprintf("%s %v", m.Name, m.V4.Addr()))
	}
	return out
}

// startControlPlane starts our own Kubernetes on the switch.
func (w *testbed) startControlPlane(ctx context.Context) error {
	w.Say("Kubernetes is starting: etcd, API server, scheduler, controller manager")
	plane, err := w.processes.StartKubernetes(ctx, w.lab.Switch.Do, filepath.Join(w.Bin, "kubelab"),
		"--dir", w.Kubelab(), "--nodes", fmt.Sprint(w.Nodes), "--bind", w.lab.Switch.V4.Addr().String())
	if err != nil {
		return err
	}
	for _, node := range w.nodes {
		node.kubeconfig = filepath.Join(w.Kubelab(), node.kubeName+".kubeconfig")
	}
	w.Say("Kubernetes is ready at %s", plane.Server)
	w.kube, err = connect(plane.Kubeconfig)
	return err
}

// reachCluster makes the user's cluster reachable from the switch and the
// nodes, through the outer program.
func (w *testbed) reachCluster(ctx context.Context) error {
	listener, err := w.lab.Switch.Listen(ctx, netip.AddrPortFrom(w.lab.Switch.V4.Addr(), 0).String())
	if err != nil {
		return err
	}
	// It runs as long as the process: leaving the cluster needs it after ctx has ended.
	forward := context.WithoutCancel(ctx)
	go func() {
		err := netlab.Forward(forward, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.apiSocket())
		})
		w.processes.Failed(err)
	}()
	const name = "demo"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	kubeconfig := filepath.Join(w.Tmpfs(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	for _, node := range w.nodes {
		node.kubeconfig = kubeconfig
	}
	w.Say("using the cluster of %s", w.Kubeconfig)
	w.kube, err = connect(kubeconfig)
	return err
}

// startFairlead starts the controller, and on each node the daemon and podrunner, and
// waits until the nodes are ready.
func (w *testbed) startFairlead(ctx context.Context) error {
	if err := w.startController(ctx); err != nil {
		return err
	}
	for _, node := range w.nodes {
		if err := w.startNode(ctx, node); err != nil {
			return err
		}
	}
	w.Say("fairlead-controller runs, and fairlead-node on each node")
	if err := w.kube.await(ctx, "the nodes", w.Reporter, w.nodesReady); err != nil {
		return err
	}
	w.Say("all nodes are ready")
	return nil
}

func (w *testbed) startController(ctx context.Context) error {
	cfg := map[string]any{
		"kubeconfig":     w.kube.path,
		"defaultNetwork": map[string]any{"driver": "native", "pools": []string{w.poolName()}},
		"leaderElection": map[string]any{"namespace": w.namespace()},
	}
	if w.Kubeconfig != "" {
		cfg["nodeSelector"] = map[string]any{"matchLabels": map[string]any{demoLabel: w.ID}}
	}
	if w.Stay {
		cfg["multiVIFSources"] = []string{"npwg"}
		cfg["networks"] = map[string]any{
			"attachedBy": "Fairlead",
			"open":       []any{map[string]any{"namespaceSelector": map[string]any{}, "bridges": []string{"*"}}},
		}
	}
	if w.OpenStack {
		cfg["defaultNetwork"] = map[string]any{"driver": "neutron"}
		cfg["openstack"] = w.openStack()
	}
	file := filepath.Join(w.Tmpfs(), "controller.yaml")
	if err := writeYAML(file, cfg); err != nil {
		return err
	}
	controller, err := w.start(ctx, w.lab.Switch.Do, "fairlead-controller", "fairlead-controller", "--config", file, "-v", "1")
	if err != nil {
		return err
	}
	w.control = controller
	return nil
}

func (w *testbed) startNode(ctx context.Context, node *labNode) error {
	err := writeYAML(node.configFile(), map[string]any{
		"nodeName":    node.kubeName,
		"kubeconfig":  node.kubeconfig,
		"stateDir":    node.stateDir(),
		"ovsdbSocket": node.ovsdbSocket(),
		"cni": map[string]any{
			"binDir": node.binDir(), "confDir": node.confDir(), "pluginSource": filepath.Join(w.Bin, "fairlead-cni"),
		},
	})
	if err != nil {
		return err
	}
	daemon, err := w.start(ctx, node.Do, "fairlead-node-"+node.Name, "fairlead-node", "run", "--config", node.configFile(), "-v", "1")
	if err != nil {
		return err
	}
	node.daemon = daemon
	args := []string{
		"--kubeconfig", node.kubeconfig, "--node", node.kubeName,
		"--cni-bin-dir", node.binDir(), "--cni-conf-dir", node.confDir(),
		"--netns-dir", node.netnsDir(), "--state-dir", node.runnerDir(),
		"--max-pods", fmt.Sprint(maxPods),
	}
	if w.Kubeconfig != "" {
		args = append(args, "--node-labels", demoLabel+"="+w.ID, "--register-with-taints", demoLabel+"="+w.ID+":NoSchedule")
	}
	runner, err := w.start(ctx, node.Do, "podrunner-"+node.Name, "podrunner", args...)
	if err != nil {
		return err
	}
	node.runner = runner
	return nil
}

func writeYAML(path string, value any) error {
	raw, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, raw, 0o600)
}
