package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// harness is a controller on the real API server, with a driver in memory; the test plays
// the node.
type harness struct {
	*cluster.Cluster
	t      *testing.T
	node   string
	driver *drivertest.Memory
	faults *cluster.Faults
	// registry has the metrics of the controller.
	registry *prometheus.Registry
	// reconciler under test.
	reconciler *Attachments
	// skipped is how far the controller's clock is ahead, in nanoseconds.
	skipped atomic.Int64
}

// skip sets the controller's clock forward.
func (h *harness) skip(d time.Duration) { h.skipped.Add(int64(d)) }

const driverName = "memory"

// nodeGrace is short: only the tests about lost Nodes delete one.
const nodeGrace = 2 * time.Second

// start runs a controller that serves one node, until the test ends.
func start(t *testing.T, c *cluster.Cluster, d *drivertest.Memory, with ...func(*Config, ctrl.Manager)) *harness {
	t.Helper()
	faults := cluster.NewFaults(nil)
	h := &harness{Cluster: c, t: t, node: c.Namespace, driver: d, faults: faults}
	h.Node(h.node, func(n *corev1.Node) { n.Labels["fairlead.dev/test"] = c.Namespace })
	h.run(c.WithFaults(faults), with)
	return h
}

func (h *harness) run(cfg *rest.Config, with []func(*Config, ctrl.Manager)) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		h.t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		h.t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:     scheme,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.registry = prometheus.NewRegistry()
	metrics, err := NewMetrics(h.registry)
	if err != nil {
		h.t.Fatal(err)
	}
	own := Config{
		Client:        mgr.GetClient(),
		Live:          mgr.GetAPIReader(),
		Drivers:       driver.Table{driverName: withPolicy(h.driver.Parts(), mgr)},
		DefaultDriver: driverName,
		Nodes:         labels.SelectorFromSet(labels.Set{"fairlead.dev/test": h.Namespace}),
		NodeGrace:     nodeGrace,
		Events:        mgr.GetEventRecorder("fairlead-controller"),
		Metrics:       metrics,
		Turns:         NewTurns(8),
		Now:           func() time.Time { return time.Now().Add(time.Duration(h.skipped.Load())) },
	}
	for _, change := range with {
		change(&own, mgr)
	}
	r := New(own)
	h.reconciler = r
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.SetupWithManager(ctx, mgr, func(r reconcile.Reconciler) reconcile.Reconciler { return r }); err != nil {
		cancel()
		h.t.Fatal(err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.Activations)); err != nil {
		cancel()
		h.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("the controller ended with: %v", err)
		}
	})
}

// withPolicy makes a driver reclaim by the policy of the IPPools that its interfaces
// name.
func withPolicy(d driver.Parts, mgr ctrl.Manager) driver.Parts {
	d.Evidence.ReclaimAfter = func(ctx context.Context, from client.Reader, interfaces []v1alpha1.Interface) (longest time.Duration, err error) {
		for _, i := range interfaces {
			pool := &v1alpha1.IPPool{}
			if i.Pool == "" {
				return 0, nil
			}
			if err := from.Get(ctx, client.ObjectKey{Name: i.Pool}, pool); err != nil || pool.Spec.ReclaimAfter == nil {
				return 0, client.IgnoreNotFound(err)
			}
			longest = max(longest, pool.Spec.ReclaimAfter.Duration)
		}
		return longest, nil
	}
	d.Run.Wake = func(ctx context.Context, w driver.Wake) error {
		pools, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.IPPool{}, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		_, err = pools.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.Leaving() },
			UpdateFunc: func(any, any) { w.Leaving() },
		})
		return err
	}
	return d
}

// withSource gives the controller a further source.
func withSource(s pod.Source) func(*Config, ctrl.Manager) {
	return func(c *Config, _ ctrl.Manager) { c.Rules.Sources = append(c.Rules.Sources, s) }
}

// record waits for the attachment of one incarnation of a pod.
func (h *harness) record(p *corev1.Pod) *v1alpha1.PodAttachment {
	h.t.Helper()
	got := &v1alpha1.PodAttachment{}
	h.Eventually(h.t, "the attachment of pod "+p.Name, func(ctx context.Context) error {
		return h.Client.Get(ctx, keyOf(p), got)
	})
	return got
}

func keyOf(p *corev1.Pod) client.ObjectKey {
	return client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
}

// state returns the state of an attachment at the API server: absent, kept, deleting.
func (h *harness) state(ctx context.Context, p *corev1.Pod) string {
	h.t.Helper()
	got := &v1alpha1.PodAttachment{}
	err := h.Client.Get(ctx, keyOf(p), got)
	switch {
	case apierrors.IsNotFound(err):
		return "absent"
	case err != nil:
		h.t.Fatal(err)
		return ""
	case got.DeletionTimestamp != nil:
		return "deleting"
	default:
		return "kept"
	}
}

func (h *harness) waitState(p *corev1.Pod, want string) {
	h.t.Helper()
	h.Eventually(h.t, fmt.Sprintf("the attachment of pod %s to be %s", p.Name, want), func(ctx context.Context) error {
		if got := h.state(ctx, p); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// setSandbox plays the node: it writes the sandbox's state, with the links that the node
// has plugged.
func (h *harness) setSandbox(p *corev1.Pod, state v1alpha1.SandboxState, links ...v1alpha1.SandboxLink) {
	h.t.Helper()
	got := &v1alpha1.PodAttachment{}
	if err := h.Client.Get(h.t.Context(), keyOf(p), got); err != nil {
		h.t.Fatal(err)
	}
	before := got.DeepCopy()
	now := metav1.NowMicro()
	got.Status.Sandbox = &v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: state, AttachedAt: &now, Links: links}
	if err := h.Client.Status().Patch(h.t.Context(), got, client.MergeFrom(before)); err != nil {
		h.t.Fatal(err)
	}
}

// delete deletes a pod. Kubernetes' own collector of pods may have been faster on a node
// that is gone or out of service.
func (h *harness) delete(p *corev1.Pod) {
	h.t.Helper()
	if err := h.Client.Delete(h.t.Context(), p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
}

// heldBy counts what the driver holds for a pod.
func (h *harness) heldBy(p *corev1.Pod) int {
	n := 0
	for _, o := range h.driver.Held() {
		if o.PodUID == p.UID {
			n++
		}
	}
	return n
}

// event waits for an event on a pod, and returns its note.
func (h *harness) event(p *corev1.Pod, reason string) string {
	h.t.Helper()
	var note string
	h.Eventually(h.t, "the event "+reason+" on pod "+p.Name, func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := h.Client.List(ctx, &list, client.InNamespace(h.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.Name == p.Name && e.Reason == reason {
				note = e.Note
				return nil
			}
			seen = append(seen, e.Reason)
		}
		return fmt.Errorf("seen: %v", seen)
	})
	return note
}

// settle waits until the controller has handled everything that happened before: it
// creates another pod and waits for its record, which the watch delivers later.
// Afterwards a test can check that the controller did nothing wrong.
func (h *harness) settle(name string) {
	h.t.Helper()
	p := h.Pod(name, h.node)
	h.record(p)
}
