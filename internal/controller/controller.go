// Package controller turns pods into PodAttachments and back. It is the only writer of
// PodAttachments. One reconcile function sees one pod's name with everything that belongs
// to it, whole, each time (reconcile.go); its steps are files: release, waiting, ensure,
// activate. What brings a pod to it is in events.go. It asks drivers and knows none of
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

// Config is what the controller is built from.
type Config struct {
	// Client reads from the informers' caches and writes to the API server.
	Client client.Client
	// Live reads from the API server, for when a cache's word is not enough.
	Live client.Reader
	// Drivers by name.
	Drivers driver.Table
	// DefaultDriver obtains the interface on the default network; empty when
	// that is somebody else's.
	DefaultDriver string
	// DefaultAddressOnly says that another CNI plugin makes that interface.
	DefaultAddressOnly bool
	// Chosen is what a pod gets on a network that it chooses for its default
	// interface, where another plugin makes that; nil when networks are not read.
	Chosen func(s pod.Selection) ([]pod.Interface, error)
	// Sources of further interfaces, in order.
	Sources []pod.Source
	// Nodes that are served.
	Nodes labels.Selector
	// NodeGrace is how long a Node must have been deleted until nothing can be
	// plugged there any more.
	NodeGrace time.Duration
	// Events are posted on pods.
	Events events.EventRecorder
	// Metrics of the reconciler.
	Metrics *Metrics
	// Turns bounds the writes that are under way at once.
	Turns Turns
	// Retry tells of what, beside the drivers, may let pods have their network that had to
	// wait, until ctx ends; nil when nothing does.
	Retry func(ctx context.Context, again func()) error
	// Now measures durations, from what this process saw; time.Now when nil.
	Now func() time.Time
	// Left gives back what drivers, by name, hold for a pod that is gone and had no record
	// yet. Nil where garbage collection does that later.
	Left func(ctx context.Context, of pod.Identity, held map[string][]driver.Ref) error
}

// Attachments is the reconciler.
type Attachments struct {
	Config
	marks     marks
	creations creations
	losses    losses
	names     names
	waiting   waiting
	silences  silences
	// told is why pods wait.
	told *warn.Teller
	// strangers are pods whose Node is not known.
	strangers strangers
	// listing is true while the records are read that were there before.
	listing atomic.Bool
	// queue has the pods that wait for a worker, and working are being worked on.
	queue   atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	working atomic.Int64
}

// New returns a reconciler.
func New(cfg Config) *Attachments {
	told := warn.New(cfg.Client)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Attachments{
		Config:    cfg,
		marks:     marks{m: map[types.UID]mark{}},
		creations: creations{m: map[types.NamespacedName]creation{}},
		losses:    losses{m: map[types.UID]loss{}},
		names:     names{m: map[types.NamespacedName][]string{}},
		waiting:   waiting{m: map[types.NamespacedName]waiter{}, metrics: cfg.Metrics, told: told},
		told:      told,

		silences:  silences{m: map[string]silence{}},
		strangers: strangers{m: map[types.NamespacedName]time.Time{}},
	}
}

// How long a failing pod rests between tries, doubling from first to last.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// SetupWithManager registers the reconciler, to which lead gives work while this
// process leads. Its caches and its queue are filled before; all but the cache of
// the records.
func (r *Attachments) SetupWithManager(ctx context.Context, mgr ctrl.Manager, lead func(reconcile.Reconciler) reconcile.Reconciler) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeNameIndex, func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	})
	if err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	if err := indexLeaving(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := mgr.Add(r.told); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	r.listing.Store(true)
	r.Client = inTurn{r.Client, r.Turns}
	return ctrl.NewControllerManagedBy(mgr).
		Named("attachments").
		WatchesRawSource(source.Func(r.retry)).
		WatchesRawSource(r.records(mgr.GetCache())).
		For(&corev1.Pod{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.podsOfNode), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.leavingOfNode), builder.WithPredicates(nodeEvidence())).
		Watches(&corev1.Node{}, r.silences.forgets()).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.podsThatWait), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(ctrlcontroller.Options{
			MaxConcurrentReconciles: cap(r.Turns) * podsPerWrite,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r.counted(lead(r)))
}

// counted counts what the workers have, also while they wait for a term as leader.
func (r *Attachments) counted(next reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		r.working.Add(1)
		defer r.working.Add(-1)
		return next.Reconcile(ctx, req)
	})
}

// BeginTerm forgets what this process remembers to have written or to have waited for
// since: another leader may have gone on from there. What is forgotten is done again,
// or waited for anew.
func (r *Attachments) BeginTerm() {
	r.marks.clear()
	r.creations.clear()
	r.losses.beginTerm()
	r.told.Clear()
}

// Busy reports whether pods are worked on, or wait for that.
func (r *Attachments) Busy() bool {
	q := r.queue.Load()
	return r.working.Load() > 0 || q != nil && (*q).Len() > 0
}
