package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	// realNode is the only node on which fairlead-node runs.
	realNode = "node-1"
	// nodes is how many nodes the cluster has. For those without a daemon the bench
	// watches the records.
	nodes = 5
	// kubelabDir is where the cluster keeps its data.
	kubelabDir = "kubelab"
)

// watchedNodes returns the nodes without a daemon.
func watchedNodes() []string { return []string{"node-2", "node-3", "node-4", "node-5"} }

// testbed is the laboratory of the bench. Its parts are created when a measurement first
// needs them.
type testbed struct {
	plan
	harness.Reporter
	processes *processes

	lab        *netlab.Lab
	kube       *kube
	proxy      *proxy
	controlled *harness.Process // the controller
	health     *daemonHTTP      // its metrics and health
	through    string           // its kubeconfig
	daemon     *harness.Process // the node's
	// keepsLease makes controllers keep the Lease while the machine is busy with other
	// work for long. A controller that ends in order gives it back at once.
	keepsLease bool
	// attaches makes controllers attach pods to further networks.
	attaches bool
	// networks is true when the further networks exist.
	networks bool
}

// machines creates the network namespaces; the switch is the bench's own namespace.
func (w *testbed) machines(ctx context.Context) (err error) {
	if w.lab == nil {
		w.lab, err = netlab.New(ctx, netlab.Config{Nodes: 1, Here: true, IPv4Only: true})
	}
	return err
}

func (w *testbed) node() *netlab.Machine { return w.lab.Nodes[0] }

// cluster starts Kubernetes, with our kinds and a pool, and the proxy.
func (w *testbed) cluster(ctx context.Context) error {
	if w.kube != nil {
		return nil
	}
	if err := w.machines(ctx); err != nil {
		return err
	}
	kubeconfig, err := w.startKubernetes(ctx, kubelabDir, nodes, "--fsync", "--idle")
	if err != nil {
		return err
	}
	if w.kube, err = connect(kubeconfig); err != nil {
		return err
	}
	if err := w.kube.install(ctx); err != nil {
		return err
	}
	w.proxy, err = serveProxy(ctx, w.lab.Switch, w.kube, filepath.Join(w.Tmpfs(), "proxy.kubeconfig"))
	return err
}

// collectGarbage collects the control plane's garbage and makes room on its heap, so that the
// next measurement does not pay for that.
func (w *testbed) collectGarbage(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.Path(filepath.Join(kubelabDir, "idle.sock")))
	if err == nil {
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		_, err = io.Copy(io.Discard, conn) // until it is done
		_ = conn.Close()
	}
	if err != nil {
		return fmt.Errorf("collect the garbage of the control plane: %w", err)
	}
	return ctx.Err()
}

// startKubernetes starts a control plane with a data directory of this name.
func (w *testbed) startKubernetes(ctx context.Context, dir string, nodes int, more ...string) (kubeconfig string, err error) {
	w.Say("  starting Kubernetes")
	plane, err := w.processes.StartKubernetes(ctx, w.lab.Switch.Do, w.program("kubelab"), append([]string{
		"--dir", w.Path(dir), "--nodes", fmt.Sprint(nodes), "--bind", w.lab.Switch.V4.Addr().String(),
	}, more...)...)
	return plane.Kubeconfig, err
}

// controller makes a controller lead that talks to the API server directly, or through
// the proxy.
func (w *testbed) controller(ctx context.Context, proxied bool) error {
	kubeconfig := w.kube.path
	if proxied {
		kubeconfig = w.proxy.kubeconfig
	}
	if w.controlled != nil && w.through == kubeconfig {
		return nil
	}
	if err := w.startController(ctx, kubeconfig); err != nil {
		return err
	}
	return await(ctx, "the controller to lead", func(ctx context.Context) error {
		lease, err := w.kube.lease(ctx)
		if err == nil && holder(lease) == "" {
			err = errors.New("the lease has no holder")
		}
		return err
	})
}

// startController replaces the running controller by a new one, and returns when its
// caches are filled. It may be on standby.
func (w *testbed) startController(ctx context.Context, kubeconfig string) error {
	if err := w.stopController(); err != nil {
		return err
	}
	socket := filepath.Join(w.Tmpfs(), fmt.Sprintf("controller-%d.sock", w.processes.count))
	file := filepath.Join(w.Tmpfs(), "controller.yaml")
	election := map[string]any{"namespace": namespace}
	if w.keepsLease {
		election["leaseDuration"], election["renewDeadline"] = "60s", "50s"
	}
	settings := map[string]any{
		"kubeconfig":     kubeconfig,
		"workers":        workers(),
		"leaderElection": election,
		"metricsAddress": "unix:" + socket,
	}
	if w.attaches {
		settings["multiVIFSources"], settings["networks"] = []string{"npwg"}, map[string]any{"attachedBy": "Fairlead"}
	}
	if err := lab.WriteYAML(file, settings); err != nil {
		return err
	}
	p, err := w.processes.command("fairlead-controller", w.program("fairlead-controller"), "--config", file)
	if err != nil {
		return err
	}
	if err := w.processes.Start(w.lab.Switch.Do, p); err != nil {
		return err
	}
	w.controlled, w.through, w.health = p, kubeconfig, newDaemonHTTP(socket)
	return await(ctx, "the controller", func(ctx context.Context) error {
		_, err := w.health.get(ctx, "/readyz")
		return err
	})
}

func (w *testbed) stopController() error {
	if w.controlled == nil {
		return nil
	}
	defer func() { w.controlled = nil }()
	return w.controlled.Stop()
}

func (w *testbed) nodeDir() string   { return filepath.Join(w.Tmpfs(), realNode) }
func (w *testbed) stateDir() string  { return "/run/fairlead-" + realNode }
func (w *testbed) cniSocket() string { return filepath.Join(w.stateDir(), "cni.sock") }
func (w *testbed) confDir() string   { return filepath.Join(w.nodeDir(), "net.d") }
func (w *testbed) binDir() string    { return w.Path(pluginDir) }
func (w *testbed) conflist() string  { return filepath.Join(w.confDir(), "10-fairlead.conflist") }

// nodeDaemon starts fairlead-node on the real node, connected to the API server through
// the proxy, and waits until it is ready. A controller runs too.
func (w *testbed) nodeDaemon(ctx context.Context) error {
	if w.daemon != nil {
		return nil
	}
	socket := filepath.Join(w.Tmpfs(), "node.sock")
	file := filepath.Join(w.Tmpfs(), "node.yaml")
	err := lab.WriteYAML(file, map[string]any{
		"nodeName":       realNode,
		"kubeconfig":     w.proxy.kubeconfig,
		"stateDir":       w.stateDir(),
		"metricsAddress": "unix:" + socket,
		"cni":            map[string]any{"binDir": w.binDir(), "confDir": w.confDir(), "pluginSource": w.program("fairlead-cni")},
	})
	if err != nil {
		return err
	}
	p, err := w.processes.command("fairlead-node", w.program("fairlead-node"), "run", "--config", file)
	if err != nil {
		return err
	}
	if err := w.processes.Start(w.node().Do, p); err != nil {
		return err
	}
	w.daemon = p
	health := newDaemonHTTP(socket)
	return await(ctx, "fairlead-node", func(ctx context.Context) error {
		if _, err := health.get(ctx, "/readyz"); err != nil {
			return err
		}
		_, err := os.Stat(w.conflist())
		return err
	})
}

// stopNode ends the daemon, so that it does not affect measurements without it.
func (w *testbed) stopNode() error {
	if w.daemon == nil {
		return nil
	}
	err := w.daemon.Stop()
	w.daemon = nil
	if e := os.Remove(filepath.Join(w.Tmpfs(), "node.sock")); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// stop ends all programs. Their remains go with the process.
func (w *testbed) stop() error {
	return errors.Join(w.stopNode(), w.stopController())
}

// pluginConfig returns the network configuration that a runtime passes to the plugin: the
// conflist as libcni converts it.
func (w *testbed) pluginConfig() ([]byte, error) {
	raw, err := os.ReadFile(w.conflist())
	if err != nil {
		return nil, err
	}
	var list struct {
		CNIVersion string
		Name       string
		Plugins    []map[string]any
	}
	if err := json.Unmarshal(raw, &list); err != nil || len(list.Plugins) != 1 {
		return nil, fmt.Errorf("conflist %s: %d plugins: %w", w.conflist(), len(list.Plugins), err)
	}
	plugin := list.Plugins[0]
	plugin["cniVersion"], plugin["name"] = list.CNIVersion, list.Name
	delete(plugin, "capabilities")
	return json.Marshal(plugin)
}
