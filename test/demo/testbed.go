package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

// testbed is the laboratory in which the demo runs.
type testbed struct {
	plan
	*lab.Cluster

	nodes   []*labNode
	control *harness.Process // the controller
	joined  bool             // objects of this run may be in the cluster
}

// labNode is one node.
type labNode struct {
	*lab.Node
	kubeconfig string
	baseline   netlab.State
}

// ovsdbSocket is the socket of the stand-in of Open vSwitch, if the node has one.
func (n *labNode) ovsdbSocket() string { return filepath.Join(n.Dir, "ovsdb.sock") }

const (
	// stepTimeout bounds each step; all steps together take a fraction of it.
	stepTimeout = 2 * time.Minute
	// progressInterval is the least time between two lines of progress.
	progressInterval = time.Second
)

// await calls look until it returns no problem, as lab.Wait.For.
func (w *testbed) await(ctx context.Context, what string, look func(context.Context) (string, error)) error {
	return lab.Wait{Limit: stepTimeout, Tick: 100 * time.Millisecond, Say: w.Say, Pause: progressInterval}.For(ctx, what, look)
}

// build creates the nodes and the connection to the API server.
func (w *testbed) build(ctx context.Context) (err error) {
	w.Net, err = netlab.New(ctx, netlab.Config{Nodes: w.Nodes, Here: true, IPv4Only: w.IPv4Only})
	if err != nil {
		return err
	}
	for i, machine := range w.Net.Nodes {
		name := machine.Name
		if w.Kubeconfig != "" {
			name = fmt.Sprintf("demo-%s-%d", w.ID, i+1)
		}
		node := &labNode{}
		if node.Node, err = w.NewNode(machine, name); err != nil {
			return err
		}
		if node.baseline, err = node.State(); err != nil {
			return fmt.Errorf("look at %s: %w", node.KubeName, err)
		}
		w.nodes = append(w.nodes, node)
	}
	w.Say("%d nodes on one link: %s", w.Nodes, strings.Join(nodeWords(w.Net.Nodes), ", "))
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
	if err := w.StartKubernetes(ctx, "--nodes", fmt.Sprint(w.Nodes)); err != nil {
		return err
	}
	for _, node := range w.nodes {
		node.kubeconfig = filepath.Join(w.Kubelab(), node.KubeName+".kubeconfig")
	}
	w.Say("Kubernetes is ready at %s", w.REST.Host)
	return nil
}

// reachCluster makes the user's cluster reachable from the switch and the
// nodes, through the outer program.
func (w *testbed) reachCluster(ctx context.Context) error {
	listener, err := w.Net.Switch.Listen(ctx, netip.AddrPortFrom(w.Net.Switch.V4.Addr(), 0).String())
	if err != nil {
		return err
	}
	// It runs as long as the process: leaving the cluster needs it after ctx has ended.
	forward := context.WithoutCancel(ctx)
	go func() {
		err := netlab.Forward(forward, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.apiSocket())
		})
		w.Programs.Failed(err)
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
	return w.Connect(kubeconfig)
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
	if err := w.await(ctx, "the nodes", w.nodesReady); err != nil {
		return err
	}
	w.Say("all nodes are ready")
	return nil
}

func (w *testbed) startController(ctx context.Context) error {
	cfg := map[string]any{
		"kubeconfig":     w.Admin,
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
	control, err := w.start(ctx, w.Switch(), func() (*harness.Process, error) {
		return w.Daemon("fairlead-controller", "fairlead-controller", cfg)
	})
	w.control = control
	return err
}

func (w *testbed) startNode(ctx context.Context, node *labNode) (err error) {
	settings := w.DaemonSettings(node.Node, node.kubeconfig)
	settings["ovsdbSocket"] = node.ovsdbSocket()
	node.Daemon, err = w.start(ctx, node.Do, func() (*harness.Process, error) {
		return w.Daemon(node.DaemonName(), "fairlead-node", settings, "run")
	})
	if err != nil {
		return err
	}
	flags := []string{"--max-pods", fmt.Sprint(maxPods)}
	if w.Kubeconfig != "" {
		flags = append(flags, "--node-labels", demoLabel+"="+w.ID, "--register-with-taints", demoLabel+"="+w.ID+":NoSchedule")
	}
	node.Runner, err = w.start(ctx, node.Do, func() (*harness.Process, error) {
		return w.Programs.Command("podrunner-"+node.Name, filepath.Join(w.Bin, "podrunner"), node.RunnerArgs(node.kubeconfig, flags...)...)
	})
	return err
}
