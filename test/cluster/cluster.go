// Package cluster gives integration tests a real Kubernetes API.
//
// All test binaries of one `go test` run share one control plane, bin/kubelab. The first
// binary starts it, and it ends by itself with the go command. Every test works in a
// namespace of its own. There are no kubelets: tests create their nodes and do the
// kubelets' work.
//
//	c := cluster.New(t)                        // beside other tests
//	node := c.Node(c.Namespace)                // cluster-wide names must be the test's own
//	pod := c.Pod("web", node.Name)
//	c.Eventually(t, "an attachment", func(ctx context.Context) error { ... })
//
// A test of a program that acts on the whole cluster, such as the controller, uses
// Exclusive instead: another control plane, which the test has for itself and may kill. A
// test binary has as many of these as tests run in it at the same time.
//
// FAIRLEAD_KUBELAB names another kubelab program. FAIRLEAD_TEST_KUBECONFIG names the
// kubeconfig of a cluster to use instead. Use a cluster without data, because Exclusive
// removes all of Fairlead's objects in it.
package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/kubeclient"
)

// ownedLabel marks the namespaces and nodes that tests created. A sweep removes no
// others.
const ownedLabel = "fairlead.dev/test"

// cleanupTimeout bounds the cleanup after a test.
const cleanupTimeout = time.Minute

// sweepTimeout bounds the removal of all that tests left: a test may leave thousands of objects.
const sweepTimeout = 5 * time.Minute

// Cluster is a test's view of the shared control plane.
type Cluster struct {
	// REST is an administrator's configuration without a rate limit.
	REST *rest.Config
	// Kubeconfig is the path of the administrator's kubeconfig, for programs under test.
	Kubeconfig string
	// Client reads from the API server, not from a cache. It knows Kubernetes' kinds, ours and CRDs.
	Client client.Client
	// Namespace is the test's own. It is removed at the end of the test with everything
	// in it.
	Namespace string

	tb testing.TB
	// rights installs the rights for Account, once in a test binary.
	rights func() error
	// lab is the kubelab of the control plane; without a program the control plane is not
	// a kubelab.
	lab lab
}

// New gives a test the shared control plane, beside other tests of this and other
// packages. Objects outside of the test's namespace need a name that no other test uses,
// and the test removes them; Node does both. The test fails if there is no control plane,
// and is skipped in short mode.
//
// A test must not call both New and Exclusive: with FAIRLEAD_TEST_KUBECONFIG each waits
// for the other.
func New(tb testing.TB) *Cluster {
	tb.Helper()
	return use(tb, connectShared, shared)
}

// Exclusive gives a test a control plane for itself. The tests of one test binary use one
// control plane, one after the other; tests that run in parallel have one each. Left-over
// objects of Fairlead, and left-over test nodes and pods, are removed before and after.
func Exclusive(tb testing.TB) *Cluster {
	tb.Helper()
	connect, giveBack := planes.take()
	tb.Cleanup(giveBack)
	c := use(tb, connect, exclusive)
	sweep := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), sweepTimeout)
		defer cancel()
		if err := c.sweep(ctx); err != nil {
			tb.Errorf("removing what tests left in the cluster: %v", err)
		}
	}
	sweep()
	tb.Cleanup(sweep)
	return c
}

// connection is a test binary's connection to the control plane.
type connection struct {
	kubeconfig string
	rest       *rest.Config
	client     client.Client
	rights     func() error
	lab        lab
}

// connectShared finds or starts the shared control plane, once in a test binary: a second try
// would fail like the first.
var connectShared = sync.OnceValues(func() (*connection, error) {
	pid := os.Getppid()
	if pid == 1 {
		pid = os.Getpid() // an orphan; a control plane of process 1 would never end
	}
	return connect(pid, 0)
})

// connect finds or starts a control plane that belongs to a process, by its number.
func connect(owner, number int) (*connection, error) {
	kubeconfig, lab, unlock, err := findControlPlane(owner, number)
	if err != nil {
		return nil, err
	}
	defer unlock()
	conn, err := dial(kubeconfig, lab)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := installCRDs(ctx, conn.client); err != nil {
		return nil, err
	}
	return conn, nil
}

// dial connects to a control plane as it is.
func dial(kubeconfig string, lab lab) (*connection, error) {
	cfg, err := kubeclient.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := kubeclient.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", kubeconfig, err)
	}
	return &connection{
		kubeconfig: kubeconfig, rest: cfg, client: api,
		rights: sync.OnceValue(func() error { return installRights(kubeconfig) }),
		lab:    lab,
	}, nil
}

func use(tb testing.TB, connect func() (*connection, error), mode lockMode) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs a Kubernetes control plane, which short mode does without")
	}
	conn, err := connect()
	if err != nil {
		tb.Fatalf("no Kubernetes control plane: %v", err)
	}
	unlock, err := lockFile(conn.kubeconfig, mode)
	if err != nil {
		tb.Fatalf("waiting for other tests: %v", err)
	}
	tb.Cleanup(unlock)

	c := conn.view(tb)
	c.makeNamespace()
	return c
}

// view returns a test's view, without a namespace.
func (conn *connection) view(tb testing.TB) *Cluster {
	tb.Helper()
	return &Cluster{
		REST: rest.CopyConfig(conn.rest), Kubeconfig: conn.kubeconfig, Client: conn.client,
		tb: tb, rights: conn.rights, lab: conn.lab,
	}
}

// makeNamespace creates the test's namespace and the service account without which no pod is admitted to it.
func (c *Cluster) makeNamespace() {
	c.tb.Helper()
	ctx := c.tb.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "t-",
		Labels:       map[string]string{ownedLabel: "true"},
	}}
	if err := c.Client.Create(ctx, namespace); err != nil {
		c.tb.Fatalf("creating a namespace: %v", err)
	}
	c.Namespace = namespace.Name
	c.cleanup(func(ctx context.Context) {
		if err := c.removeNamespace(ctx, c.Namespace); err != nil {
			c.tb.Errorf("removing namespace %s: %v", c.Namespace, err)
		}
	})
	// Kubernetes creates the account as well, but later.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "default"}}
	if err := c.Client.Create(ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
		c.tb.Fatalf("creating the service account of %s: %v", c.Namespace, err)
	}
}

// cleanup calls do after the test, when the test's own context has ended.
func (c *Cluster) cleanup(do func(ctx context.Context)) {
	c.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.tb.Context()), cleanupTimeout)
		defer cancel()
		do(ctx)
	})
}
