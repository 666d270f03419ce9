// Package cluster gives integration tests a real Kubernetes API.
//
// All test binaries of one `go test` run share one control plane, bin/kubelab; the first to come starts it, and it ends
// by itself with the go command. Every test works in a namespace of its own. There are no kubelets: tests make their
// nodes and play their part.
//
//	c := cluster.New(t)                        // beside other tests
//	node := c.Node(c.Namespace)                // cluster-wide names must be the test's own
//	pod := c.Pod("web", node.Name)
//	c.Eventually(t, "an attachment", func(ctx context.Context) error { ... })
//
// A test that runs something which acts on the whole cluster, as the controller does, takes Exclusive instead: another
// control plane, one for each test binary, which it has for itself and may kill.
//
// FAIRLEAD_KUBELAB names another kubelab program. FAIRLEAD_TEST_KUBECONFIG names the kubeconfig of a cluster to use
// instead; it has to be one to throw away, because Exclusive removes every object of Fairlead's in it.
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

// ownedLabel marks the namespaces and nodes that tests made, and nothing else is ever removed by a sweep.
const ownedLabel = "fairlead.dev/test"

// cleanupTimeout bounds what is removed after a test.
const cleanupTimeout = time.Minute

// Cluster is a test's view of the shared control plane.
type Cluster struct {
	// REST is an administrator's configuration without a rate limit.
	REST *rest.Config
	// Kubeconfig is the path of the administrator's kubeconfig, for programs under test.
	Kubeconfig string
	// Client reads from the API server, not from a cache. It knows Kubernetes' kinds, ours and CRDs.
	Client client.Client
	// Namespace is the test's own. It goes at the end of the test with all that is in it.
	Namespace string

	tb testing.TB
	// rights installs what Account needs, once in a test binary.
	rights func() error
	// lab is where its control plane comes from; without a program it is somebody else's.
	lab lab
}

// New gives a test the control plane beside other tests of this and other packages. What the test makes outside its
// namespace needs a name that no other test uses, and the test removes it; Node does. The test fails when there is no
// control plane to be had, and is skipped in short mode.
//
// A test must not call New and Exclusive both: with FAIRLEAD_TEST_KUBECONFIG each waits for the other.
func New(tb testing.TB) *Cluster {
	tb.Helper()
	return use(tb, connectShared, shared)
}

// Exclusive gives a test a control plane for itself. Those of one test binary have one, one after the other. Objects of
// Fairlead's, and test nodes and pods that are left over are removed before and after.
func Exclusive(tb testing.TB) *Cluster {
	tb.Helper()
	c := use(tb, connectExclusive, exclusive)
	sweep := func(ctx context.Context) {
		if err := c.sweep(ctx); err != nil {
			tb.Errorf("removing what tests left in the cluster: %v", err)
		}
	}
	sweep(tb.Context())
	c.cleanup(sweep)
	return c
}

// connection is what a test binary keeps of the control plane.
type connection struct {
	kubeconfig string
	rest       *rest.Config
	client     client.Client
	rights     func() error
	lab        lab
}

// Each finds or starts a control plane once in a test binary: a second try would fail as the first did.
var (
	connectShared = sync.OnceValues(func() (*connection, error) {
		pid := os.Getppid()
		if pid == 1 {
			pid = os.Getpid() // an orphan; what belonged to process 1 would never end
		}
		return connect(pid)
	})
	connectExclusive = sync.OnceValues(func() (*connection, error) { return connect(os.Getpid()) })
)

// connect finds or starts the control plane that belongs to a process.
func connect(owner int) (*connection, error) {
	kubeconfig, lab, unlock, err := findControlPlane(owner)
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

// view is a test's, without a namespace.
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
	// Kubernetes makes the account as well, in its own time.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "default"}}
	if err := c.Client.Create(ctx, account); err != nil && !apierrors.IsAlreadyExists(err) {
		c.tb.Fatalf("creating the service account of %s: %v", c.Namespace, err)
	}
}

// cleanup does something after the test, when its own context has ended.
func (c *Cluster) cleanup(do func(ctx context.Context)) {
	c.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.tb.Context()), cleanupTimeout)
		defer cancel()
		do(ctx)
	})
}
