// Package controller creates a PodAttachment for each pod and releases it when the pod is
// gone. It is the only writer of PodAttachments; in this package a record is a
// PodAttachment. One reconcile function works on one pod name, with the pod and all
// records of that name (reconcile.go). Its steps are in files of their own: release,
// waiting, ensure, activate. The events that enqueue a pod are in events.go. The package
// calls drivers through their contract and contains nothing that is special to one of
// them.
package controller

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/warn"
)

// Config of the reconciler.
type Config struct {
	// Client reads from the informers' caches and writes to the API server.
	Client client.Client
	// Live reads from the API server, where the cache may be too old to decide.
	Live client.Reader
	// Drivers by name.
	Drivers driver.Table
	// DefaultDriver names the driver of the default network's interface; empty if another
	// CNI plugin obtains that interface and its addresses.
	DefaultDriver string
	// DefaultAddressOnly is true if another CNI plugin makes the default interface, with
	// addresses from DefaultDriver.
	DefaultAddressOnly bool
	// DefaultNetwork is the NetworkAttachmentDefinition of the default interfaces that
	// Fairlead attaches, without a Name if they are on the pools of DefaultDriver.
	DefaultNetwork pod.Selection
	// Chosen returns the interfaces for the network that a pod chooses for its default
	// interface. Nil if networks are not read.
	Chosen func(p *corev1.Pod, s pod.Selection) ([]pod.Interface, error)
	// Sources of further interfaces, in order.
	Sources []pod.Source
	// Attaches reports whether Fairlead makes the interfaces of a pod on further networks.
	// Nil: another program makes them.
	Attaches func(p *corev1.Pod) bool
	// Follow returns the interfaces for networks that a running pod selects, and has not
	// got yet. It is called for pods that Fairlead attaches.
	Follow func(p *corev1.Pod, add []pod.Selection) ([]pod.Interface, error)
	// Nodes selects the nodes that are served, by their labels.
	Nodes labels.Selector
	// NodeGrace is how long a Node must have been deleted before its records may be
	// released: by then nothing can be plugged there any more.
	NodeGrace time.Duration
	// Events are posted on pods.
	Events events.EventRecorder
	// Metrics of the reconciler.
	Metrics *Metrics
	// Turns bounds the writes to the API server that run at the same time.
	Turns Turns
	// Retry calls again, until ctx ends, whenever waiting pods may get their network for
	// a reason that no driver reports. Nil if there is no such reason.
	Retry func(ctx context.Context, again func()) error
	// Now is the clock for all durations in the evidence about nodes; time.Now if nil.
	Now func() time.Time
	// Left gives back the interfaces that drivers, by name, hold for a pod that is gone
	// and had no record yet. If it is nil, garbage collection gives them back later.
	Left func(ctx context.Context, of pod.Identity, held map[string][]driver.Ref) error
}

// Attachments is the reconciler.
type Attachments struct {
	Config
	marks       marks
	creations   creations
	losses      losses
	names       names
	waiting     waiting
	unreachable unreachableNodes
	// warnings are the events that explain why pods wait.
	warnings *warn.Teller
	// nodeless are the pods whose Node is not in the cache.
	nodeless nodelessPods
	// readingRecords is true until all records have been read that existed at the start.
	readingRecords atomic.Bool
	// queue has the pods that wait for a worker; working counts the busy workers.
	queue   atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	working atomic.Int64
}

// New returns a reconciler.
func New(cfg Config) *Attachments {
	warnings := warn.New(cfg.Client)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Attachments{
		Config:      cfg,
		marks:       marks{m: map[types.UID]mark{}},
		creations:   creations{m: map[types.NamespacedName]creation{}},
		losses:      losses{m: map[types.UID]loss{}},
		names:       names{m: map[types.NamespacedName][]string{}},
		waiting:     waiting{m: map[types.NamespacedName]waiter{}, metrics: cfg.Metrics, warnings: warnings},
		warnings:    warnings,
		unreachable: unreachableNodes{m: map[string]unreachableNode{}},
		nodeless:    nodelessPods{m: map[types.NamespacedName]time.Time{}},
	}
	cfg.Metrics.measure(r)
	return r
}

// Pauses between two tries of a pod that fails: the first, doubling up to the last.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// SetupWithManager registers the reconciler. lead wraps it, so that it gets work only
// while this process leads. Before that its caches and its queue are filled already,
// except for the cache of the records.
func (r *Attachments) SetupWithManager(ctx context.Context, mgr ctrl.Manager, lead func(reconcile.Reconciler) reconcile.Reconciler) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameIndex, func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	})
	if err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	if err := indexTerminating(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := mgr.Add(r.warnings); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	r.readingRecords.Store(true)
	r.Client = inTurn{r.Client, r.Turns}
	return ctrl.NewControllerManagedBy(mgr).
		Named("attachments").
		WatchesRawSource(source.Func(r.retry)).
		WatchesRawSource(r.records(mgr.GetCache())).
		For(&corev1.Pod{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.podsOfNode), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.terminatingOfNode), builder.WithPredicates(nodeEvidence())).
		Watches(&corev1.Node{}, r.unreachable.forgets()).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.podsThatWait), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(ctrlcontroller.Options{
			MaxConcurrentReconciles: cap(r.Turns) * podsPerWrite,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r.countWorking(lead(r)))
}

// countWorking counts the pods that workers hold, including those that wait for this
// process to become the leader.
func (r *Attachments) countWorking(next reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		r.working.Add(1)
		defer r.working.Add(-1)
		return next.Reconcile(ctx, req)
	})
}

// BeginTerm forgets the writes and the waiting times that this process remembers of a
// former term, since another leader may have changed things meanwhile. Forgotten writes
// are made again, and forgotten waiting times begin anew.
func (r *Attachments) BeginTerm() {
	r.marks.clear()
	r.creations.clear()
	r.losses.beginTerm()
	r.warnings.Clear()
}

// Busy reports whether a worker has a pod or a pod is in the queue.
func (r *Attachments) Busy() bool {
	q := r.queue.Load()
	return r.working.Load() > 0 || q != nil && (*q).Len() > 0
}
