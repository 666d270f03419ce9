package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// bedTimeout bounds each step. Most take seconds, and ten times as long on a machine that is
// busy with other tests. A call of Neutron that hangs ends after two minutes.
const bedTimeout = 6 * time.Minute

// manyTimes is how many times as long a step may take if churnVariable has the number of pods.
const manyTimes = 5

// firstOfBed is the number of the first chassis.
const firstOfBed = 211

// bed has Fairlead's programs on two nodes that are OVN chassis, a Kubernetes, and the
// cloud.
type bed struct {
	*testing.T
	top       *testing.T // the whole test, whose programs outlive a story
	c         *cluster.Cluster
	lab       *lab.Lab
	neutron   *gophercloud.ServiceClient
	cloud     *cloudObjects
	proxy     *proxy
	nodes     []*bedNode
	processes *harness.Processes

	dir         string // of configurations, logs and state
	account     string // kubeconfig of the controllers
	controllers []*harness.Process
	marks       map[string]any  // openstack.ports.pools of the controllers; nil for no pools
	failed      context.Context //nolint:containedctx // it ends when a program ends that was not stopped
	pods        *atomic.Int64   // pods that had a network
	left        int             // stories that did not run to their end
}

// bedNode is a node with the daemon and podrunner: a chassis, or a machine on it.
type bedNode struct {
	*lab.Chassis
	Name     string // of the Node
	uplink   string
	ns       *netlab.Namespace
	dir      string
	kube     string // kubeconfig of the daemon
	daemon   *harness.Process
	runner   *harness.Process
	baseline []string
}

func (n *bedNode) path(name string) string { return filepath.Join(n.dir, name) }

// newBed makes two nodes and starts two controllers with a configuration, and waits until
// pods can start.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, top: t, lab: lab.Use(t), pods: &atomic.Int64{}}
	b.c = cluster.Exclusive(t)
	b.c.Networks()
	failed, fail := context.WithCancelCause(t.Context())
	b.failed = failed
	b.dir = filepath.Join(b.lab.State, "e2e")
	logs := filepath.Join(b.lab.State, "log")
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(b.dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			b.keepLogs(logs)
		}
	})
	b.processes = &harness.Processes{Logs: logs, Env: b.lab.Env(), Failed: fail}
	var err error
	if b.neutron, err = b.lab.Network(t.Context(), lab.K8s); err != nil {
		t.Fatal(err)
	}
	b.proxy = newProxy(t, b.lab)
	b.cloud = b.prepareCloud()
	b.account = b.c.Account(cluster.ControllerAccount, "")
	for i := range 2 {
		b.nodes = append(b.nodes, b.node(fmt.Sprintf("e2e-%d", i+1), firstOfBed+i))
	}
	return b
}

// keepLogs copies the logs, which end with the laboratory.
func (b *bed) keepLogs(logs string) {
	b.Helper()
	kept, err := os.MkdirTemp("", "fairlead-logs-")
	if err == nil {
		err = os.CopyFS(kept, os.DirFS(logs))
	}
	if err != nil {
		b.Error(err)
		return
	}
	b.Logf("logs: %s", kept)
}

// node makes a node and starts its daemon and podrunner.
func (b *bed) node(name string, number int) *bedNode {
	b.Helper()
	chassis, err := b.lab.Chassis(b.Context(), name, number)
	if err != nil {
		b.Fatal(err)
	}
	b.cleanup("end chassis "+name, chassis.Down)
	ns, err := chassis.Open()
	if err != nil {
		b.Fatal(err)
	}
	b.cleanup("close "+name, func(context.Context) error { return ns.Close() })
	n := &bedNode{Chassis: chassis, Name: name, uplink: "br-phys", ns: ns}
	b.join(n)
	return n
}

// join makes the Node of a network namespace and starts its programs.
func (b *bed) join(n *bedNode, with ...func(*corev1.Node)) {
	b.Helper()
	n.dir = filepath.Join(b.dir, n.Name)
	for _, dir := range []string{"", "state", "bin", "conf", "netns", "runner"} {
		if err := os.Mkdir(n.path(dir), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	b.forward(n, b.c.REST.Host)
	b.c.Node(n.Name, with...)
	n.kube = b.c.Account(cluster.NodeAccount, n.Name)
	b.startNode(n)
}

// forward makes a server on the loopback of this machine reachable from a node at the same
// address.
func (b *bed) forward(n *bedNode, at string) {
	b.Helper()
	server, err := url.Parse(at)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	listener, err := n.ns.Listen(ctx, server.Host)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- netlab.Forward(ctx, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", server.Host)
		})
	}()
	b.cleanup("forward to "+at, func(context.Context) error {
		cancel()
		return <-done
	})
}

// startNode starts the programs of a node, and waits until pods can start there.
func (b *bed) startNode(n *bedNode) {
	b.Helper()
	b.startDaemon(n)
	n.runner = b.start(n.ns.Do, "podrunner-"+n.Name, "podrunner", "--kubeconfig", b.c.Kubeconfig, "--node", n.Name,
		"--cni-bin-dir", n.path("bin"), "--cni-conf-dir", n.path("conf"), "--netns-dir", n.path("netns"), "--state-dir", n.path("runner"),
		"--max-pods", "500", "--backoff", "1s")
}

// startDaemon starts the daemon of a node.
func (b *bed) startDaemon(n *bedNode) {
	b.Helper()
	b.write(n.path("node.yaml"), map[string]any{
		"nodeName": n.Name, "kubeconfig": n.kube, "stateDir": n.path("state"), "uplink": n.uplink,
		"ovsdbSocket": n.OVSDB[len("unix:"):],
		"cni":         map[string]any{"binDir": n.path("bin"), "confDir": n.path("conf"), "pluginSource": program(b.T, "fairlead-cni")},
	})
	n.daemon = b.start(n.ns.Do, "fairlead-node-"+n.Name, "fairlead-node", "run", "--config", n.path("node.yaml"), "-v", "1")
}

// start starts a program that ends with the test.
func (b *bed) start(in harness.Place, name, binary string, args ...string) *harness.Process {
	b.Helper()
	p, err := b.processes.Command(name, program(b.T, binary), args...)
	if err == nil {
		err = b.processes.Start(in, p)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.top.Cleanup(func() {
		if err := p.Stop(); err != nil {
			b.top.Error(err)
		}
	})
	return p
}

// program returns the path of a program that make has built.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: make openstack builds it", err)
	}
	return path
}

// lead starts two controllers with a default network and a fabric, nil for none, in place
// of those that run.
func (b *bed) lead(defaultNetwork, fabric map[string]any) {
	b.Helper()
	for _, p := range b.controllers {
		if err := p.Stop(); err != nil {
			b.Error(err)
		}
	}
	b.controllers = nil
	openstack := map[string]any{
		"cluster": bedName, "cloudsFile": b.proxy.clouds, "cloud": lab.K8s,
		"ports": map[string]any{"network": b.cloud.network, "securityGroups": []string{b.cloud.group}, "pools": b.marks},
		"open": []map[string]any{{
			"namespaceSelector": map[string]any{},
			"networks":          []string{bedName + "*"}, "subnets": []string{bedName + "*"}, "securityGroups": []string{bedName + "*"},
		}},
	}
	if fabric != nil {
		openstack["fabric"] = fabric
	}
	b.write(filepath.Join(b.dir, "controller.yaml"), map[string]any{
		"kubeconfig": b.account, "metricsAddress": "0", "gcInterval": "10s", "nodeGrace": "10s",
		"leaderElection":  map[string]any{"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "200ms"},
		"defaultNetwork":  defaultNetwork,
		"multiVIFSources": []string{"npwg"}, "networks": map[string]any{"attachedBy": "Fairlead"},
		"openstack": openstack,
	})
	for i := range 2 {
		b.controllers = append(b.controllers, b.controller(i))
	}
}

func (b *bed) controller(i int) *harness.Process {
	b.Helper()
	here := func(fn func() error) error { return fn() }
	return b.start(here, fmt.Sprintf("fairlead-controller-%d", i+1), "fairlead-controller", "--config", filepath.Join(b.dir, "controller.yaml"), "-v", "1")
}

func (b *bed) write(path string, value any) {
	b.Helper()
	raw, err := yaml.Marshal(value)
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// cleanup calls do after the test, when its context has ended.
func (b *bed) cleanup(what string, do func(context.Context) error) {
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), bedTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			b.Errorf("%s: %v", what, err)
		}
	})
}

// await waits until look returns nil, and fails the test with its last error.
func (b *bed) await(what string, look func(context.Context) error) {
	b.Helper()
	limit := bedTimeout
	if os.Getenv(churnVariable) != "" {
		limit *= manyTimes
	}
	ctx, cancel := context.WithTimeout(b.failed, limit)
	defer cancel()
	next := time.NewTicker(50 * time.Millisecond)
	defer next.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			b.Fatalf("waiting for %s: %v: %v", what, context.Cause(ctx), last)
		case <-next.C:
		}
	}
}

// story runs a part of the test; b.T is its own there. It leaves no pod.
func (b *bed) story(name string, run func(b *bed)) {
	b.left++
	b.chapter(name, func(part *bed) {
		run(part)
		b.left--
	})
}

// chapter is a part of a story.
func (b *bed) chapter(name string, run func(b *bed)) {
	b.Run(name, func(t *testing.T) {
		part := *b
		part.T = t
		start := time.Now()
		defer func() {
			b.controllers = part.controllers
			t.Logf("took %v", time.Since(start).Round(time.Second/10))
			if err := b.c.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(b.c.Namespace)); err != nil {
				t.Error(err)
			}
		}()
		run(&part)
	})
}

// podOf reads the pod that has the name of a pod.
func (b *bed) podOf(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	now := &corev1.Pod{}
	return now, b.c.Client.Get(ctx, client.ObjectKeyFromObject(p), now)
}
