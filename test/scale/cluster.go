package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	accounts "fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/lab"
)

// limit is how long one step of the test may take. 30,000 pods of 1,000 nodes need a quarter of
// an hour on two processors.
const limit = time.Hour

// cluster is the control plane, the controllers and the simulated nodes.
type cluster struct {
	settings
	// Its client is the administrator's, without limits of API priority and fairness.
	*lab.Cluster

	core       corev1client.CoreV1Interface
	controller string // kubeconfig of the controllers' ServiceAccount
	leader     *controller
	standby    *controller
	started    int

	lives    *lives
	workload *workload
	nodes    []*node
	running  sync.WaitGroup
	end      context.CancelFunc
	results  []result
}

// prepare starts the control plane and the controllers, without nodes.
func (c *cluster) prepare(ctx context.Context) (err error) {
	c.Say("starting Kubernetes")
	// etcd syncs to disk in a real cluster; here the disk is not part of the question.
	if err := c.StartKubernetes(ctx, "--owner-pid", fmt.Sprint(os.Getpid()), "--controller-accounts"); err != nil {
		return err
	}
	if c.core, err = c.as(rest.ImpersonationConfig{}); err != nil {
		return err
	}
	if err := c.install(ctx); err != nil {
		return err
	}
	c.controller = c.Dir.Path("controller.kubeconfig")
	if err := c.ControllerAccount(ctx, c.controller); err != nil {
		return err
	}
	if c.leader, err = c.startController(ctx); err != nil {
		return err
	}
	if c.standby, err = c.startController(ctx); err != nil {
		return err
	}
	c.lives = &lives{all: map[types.NamespacedName]*life{}}
	replicas, err := c.as(rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:replicaset-controller",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	})
	if err != nil {
		return err
	}
	c.workload = newWorkload(c.core, replicas, c.lives)
	var nodesCtx context.Context
	nodesCtx, c.end = context.WithCancel(context.WithoutCancel(ctx))
	c.running.Go(func() { _ = c.workload.run(nodesCtx) })
	return nil
}

// as returns a client of pods and nodes with the name of another user, so that API priority
// and fairness treats its requests as those of this user. No name is the administrator.
func (c *cluster) as(user rest.ImpersonationConfig) (corev1client.CoreV1Interface, error) {
	cfg := rest.CopyConfig(c.REST)
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	cfg.Impersonate = user
	return corev1client.NewForConfig(cfg)
}

// install installs Fairlead's kinds and rights, and a pool.
func (c *cluster) install(ctx context.Context) error {
	rights, err := accounts.Deploy("rights")
	if err != nil {
		return err
	}
	if err := c.Install(ctx, filepath.Dir(filepath.Dir(rights))); err != nil {
		return err
	}
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.64.0.0/11"}, Placement: v1alpha1.PlacementPerNode, MaxBlocksPerNode: int32(c.Blocks)}, //nolint:gosec // the API server refuses more than 1024
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		pool,
	} {
		if err := c.Create(ctx, o); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// await calls look until it returns nil: for things that nothing announces.
func await(ctx context.Context, what string, look func(context.Context) error) error {
	return lab.Wait{Limit: limit, Tick: 50 * time.Millisecond}.ForNil(ctx, what, look)
}

// controller is a process of fairlead-controller.
type controller struct {
	*harness.Process
	metrics endpoint
}

// startController starts a controller, and returns when it is ready.
func (c *cluster) startController(ctx context.Context) (*controller, error) {
	k, err := c.launchController()
	if err != nil {
		return nil, err
	}
	return k, await(ctx, "a ready controller", func(ctx context.Context) error {
		_, err := k.metrics.get(ctx, "/readyz")
		return err
	})
}

func (c *cluster) launchController() (*controller, error) {
	c.started++
	name := fmt.Sprintf("controller-%d", c.started)
	socket, file := c.Dir.Path(name+".sock"), c.Dir.Path(name+".yaml")
	if err := lab.WriteYAML(file, map[string]any{"kubeconfig": c.controller, "metricsAddress": "unix:" + socket}); err != nil {
		return nil, err
	}
	p, err := c.Programs.Command(name, filepath.Join(c.Bin, "fairlead-controller"), "--config", file)
	if err != nil {
		return nil, err
	}
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Programs.Start(c.Switch(), p); err != nil {
		return nil, err
	}
	return &controller{p, atSocket(socket)}, nil
}

// addNodes creates the Nodes with their daemons, and waits until each has reported its
// NodeNetwork.
func (c *cluster) addNodes(ctx context.Context) error {
	all, stop := context.WithCancel(context.WithoutCancel(ctx))
	end := c.end
	c.end = func() { stop(); end() }
	made, err := c.watchNetworks(ctx)
	if err != nil {
		return err
	}
	defer made.Stop()
	byName := map[string]*node{}
	first := netip.MustParseAddr("172.16.0.1")
	for i := range c.Nodes { // the last two for twoNodes
		name, address := fmt.Sprintf("node-%04d", i+1), first.String()
		first = first.Next()
		byName[name] = &node{name: name, address: address}
		c.nodes = append(c.nodes, byName[name])
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	for i, n := range c.nodes {
		g.Go(func() error {
			cfg, err := c.addNode(gctx, n)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.name, err)
			}
			if c.nodes[i], err = newNode(cfg, n.name, n.address, c.Dir.Path(recordsDir), c.lives); err != nil {
				return err
			}
			c.nodes[i].kubelet, err = c.as(rest.ImpersonationConfig{
				UserName: "system:node:" + n.name, Groups: []string{"system:nodes", "system:authenticated"},
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, n := range c.nodes {
		byName[n.name] = n
		c.running.Go(func() { _ = n.run(all) })
	}
	return c.reportNetworks(ctx, byName, made)
}

// watchNetworks returns a watch of NodeNetworks that goes on if the API server ends it. It does
// so if an event is not read soon enough, and all simulated nodes share the processors.
func (c *cluster) watchNetworks(ctx context.Context) (watch.Interface, error) {
	before := &v1alpha1.NodeNetworkList{}
	if err := c.List(ctx, before); err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, before.ResourceVersion, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &v1alpha1.NodeNetworkList{}, &client.ListOptions{Raw: &o})
		},
	})
}

// addNode creates the Node, and the pod of its daemon, and returns the credentials of this
// pod.
func (c *cluster) addNode(ctx context.Context, n *node) (*rest.Config, error) {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated"}},
	}}
	if _, err := c.core.Nodes().Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	pod := lab.NewPod("", "", n.name, nil)
	pod.GenerateName, pod.Spec.ServiceAccountName, pod.Spec.HostNetwork = "fairlead-node-", accounts.NodeAccount, true
	pod, err := c.core.Pods(accounts.AccountNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	path := c.Dir.Path(n.name + ".kubeconfig")
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	if err := accounts.WriteAccount(ctx, c, c.REST, path, accounts.NodeAccount, bound); err != nil {
		return nil, err
	}
	cfg, err := kubeclient.Config(path)
	return cfg, errors.Join(err, os.Remove(path))
}

// reportNetworks has each node report its NodeNetwork as soon as the controller has made
// it, and returns when all have.
func (c *cluster) reportNetworks(ctx context.Context, byName map[string]*node, made watch.Interface) error {
	g, ctx := errgroup.WithContext(ctx)
	turns := make(chan struct{}, clients) // the loop does not wait for them
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for left := len(byName); left > 0; {
		select {
		case event, open := <-made.ResultChan():
			if !open {
				return errors.New("the watch of NodeNetworks ended")
			}
			nn, ok := event.Object.(*v1alpha1.NodeNetwork)
			if !ok || event.Type != watch.Added {
				continue
			}
			left--
			g.Go(func() error {
				turns <- struct{}{}
				defer func() { <-turns }()
				return await(ctx, "a status of "+nn.Name, byName[nn.Name].report) // a daemon tries again, too
			})
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), g.Wait())
		case <-timer.C:
			return fmt.Errorf("%d nodes have no NodeNetwork within %v", left, limit)
		}
	}
	return g.Wait()
}

// stop ends the nodes and all programs.
func (c *cluster) stop() error {
	if c.end != nil {
		c.end()
	}
	c.running.Wait()
	var all []*harness.Process
	for _, k := range []*controller{c.leader, c.standby} {
		if k != nil {
			all = append(all, k.Process)
		}
	}
	err := harness.StopAll(all...)
	if c.Plane != nil {
		err = errors.Join(err, c.Plane.Stop())
	}
	return err
}
