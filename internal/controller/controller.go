package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	"fairlead.dev/fairlead/api/v1alpha1"
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
	marks    marks
	names    names
	waiting  waiting
	silences silences
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
		Config:  cfg,
		marks:   newMarks(),
		names:   names{m: map[types.NamespacedName][]string{}},
		waiting: waiting{m: map[types.NamespacedName]waiter{}, metrics: cfg.Metrics, told: told},
		told:    told,

		silences:  silences{m: map[string]silence{}},
		strangers: strangers{m: map[types.NamespacedName]time.Time{}},
	}
}

// nodeNameIndex is the cache index of pods by their node.
const nodeNameIndex = "spec.nodeName"

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
	r.told.Clear()
}

// Busy reports whether pods are worked on, or wait for that.
func (r *Attachments) Busy() bool {
	q := r.queue.Load()
	return r.working.Load() > 0 || q != nil && (*q).Len() > 0
}

// Reconcile brings one pod's name to where it should be: an attachment for the
// pod that lives, none for any that does not.
func (r *Attachments) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p, records, err := r.observe(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	var (
		result  ctrl.Result
		errs    []error
		current *v1alpha1.PodAttachment
		uid     types.UID
	)
	if p != nil {
		uid = p.UID
	}
	r.marks.onlyOf(req.NamespacedName, uid)
	for i := range records {
		record := &records[i]
		if p != nil && pod.Of(record) == pod.KeyOf(p) {
			current = record
			if pod.Holds(p) && record.DeletionTimestamp == nil {
				gone, again, err := r.givenUp(ctx, record, p)
				errs = append(errs, err)
				result = sooner(result, ctrl.Result{RequeueAfter: again})
				if !gone {
					continue
				}
			}
		}
		again, err := r.release(ctx, record, p)
		errs = append(errs, err)
		result = sooner(result, again)
	}
	// A pod that terminates waits until it is gone: what it has obtained goes with it.
	errs = append(errs, r.leave(ctx, req.NamespacedName, p))
	switch {
	case p == nil || !r.serves(ctx, p):
		result = sooner(result, r.awaitItsNode(ctx, req.NamespacedName, p, current))
	case current == nil && pod.Wants(p):
		r.strangers.remove(req.NamespacedName)
		again, err := r.ensure(ctx, p)
		errs = append(errs, err)
		result = sooner(result, again)
	case current != nil && current.DeletionTimestamp == nil && pod.Holds(p):
		r.waiting.remove(req.NamespacedName)
		errs = append(errs, r.activate(ctx, p, current))
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// observe reads, from the caches, a pod (nil when it is gone) and every
// attachment that was made for its name. They are the cache's own: whoever
// changes one copies it first.
func (r *Attachments) observe(ctx context.Context, key types.NamespacedName) (*corev1.Pod, []v1alpha1.PodAttachment, error) {
	p := &corev1.Pod{}
	if err := r.Client.Get(ctx, key, p, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		p = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("read pod from cache: %w", err)
	}
	var records []v1alpha1.PodAttachment
	for _, name := range r.names.of(key) {
		var record v1alpha1.PodAttachment
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &record, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, nil, fmt.Errorf("read attachment from cache: %w", err)
		}
		if err == nil {
			records = append(records, record)
		}
	}
	return p, records, nil
}

// serves reports whether a pod is on a node that is there and ours. Anybody can bind a
// pod to a node that does not exist, and every such node would take a whole block.
func (r *Attachments) serves(ctx context.Context, p *corev1.Pod) bool {
	known, ours := r.nodeOf(ctx, p)
	return known && ours
}

// podsOfNode maps a node whose labels changed to its pods: those that wait may
// be let into a pool, and others may be ours from now on.
func (r *Attachments) podsOfNode(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{nodeNameIndex: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has ended with the program
	}
	var out []reconcile.Request
	for i := range pods.Items {
		p := &pods.Items[i]
		mayBeOurs := !r.Nodes.Empty() && pod.Wants(p) && p.Status.Phase == corev1.PodPending
		if mayBeOurs || r.waiting.has(client.ObjectKeyFromObject(p)) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
		}
	}
	return out
}

// podsThatWait maps any change of a namespace's labels to the pods that got nothing so
// far.
func (r *Attachments) podsThatWait(context.Context, client.Object) []reconcile.Request {
	return r.waiting.all()
}

// retry enqueues the pods that wait whenever a driver or Config.Retry says so.
func (r *Attachments) retry(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	add := func(all []reconcile.Request) {
		for _, req := range all {
			q.Add(req)
		}
	}
	wake := driver.Wake{
		Waiting: func() { add(r.waiting.all()) },
		Leaving: func() { add(r.leaving(ctx, anyNode)) },
	}
	for name, d := range r.Drivers {
		if d.Wake == nil {
			continue
		}
		if err := d.Wake(ctx, wake); err != nil {
			return fmt.Errorf("have driver %s wake pods: %w", name, err)
		}
	}
	if r.Retry == nil {
		return nil
	}
	return r.Retry(ctx, wake.Waiting)
}

// sooner is the one of two results that comes back first.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter != 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}
