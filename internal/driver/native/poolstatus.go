package native

import (
	"context"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/run"
)

// StatusDelay is the time between a change of a block and the reconciliation of the objects
// that depend on it, above all its pools. Changes within this time share one
// reconciliation.
const StatusDelay = time.Second

// Gauges receives how full pools are.
type Gauges interface {
	// Pool sets how many addresses of a pool are in a state: free, allocated, cooling,
	// held or reserved.
	Pool(pool, state string, count float64)
	// Exhausts sets the time until a pool is exhausted; known is false if it is not
	// filling.
	Exhausts(pool string, in time.Duration, known bool)
	// Valid sets whether a pool can be used.
	Valid(pool string, valid bool)
	// NoPool removes the gauges of a pool.
	NoPool(pool string)
}

// Lead wraps a reconciler so that it works only while this process leads. Its queue fills
// meanwhile.
type Lead func(reconcile.Reconciler) reconcile.Reconciler

// PoolStatus writes the status of IPPools.
type PoolStatus struct {
	Client client.Client
	Pools  *Pools
	Store  *block.Store
	Gauges Gauges
	// Synced reports whether the store knows all taken addresses. Until then no pool is
	// reconciled.
	Synced func() bool
	// Audited returns the findings of the last audit about a pool; known is false before
	// the first audit. Nil if there are no audits.
	Audited func(p *ipam.Pool) (found []audit.Finding, known bool)
	// OnAudit registers a function that is called when the result of the audit changes.
	// Nil if there are no audits.
	OnAudit func(f func())
	// Events receives the events of pools; nil for none.
	Events events.EventRecorder

	forecast forecast
}

// SetupWithManager registers the reconciler. Each write of a status, its own too, triggers
// another Reconcile: the status may have been compared with an outdated object, and the
// outcome of a write may be unknown.
func (r *PoolStatus) SetupWithManager(mgr ctrl.Manager, lead Lead) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("pools").
		WatchesRawSource(source.Func(r.audits)).
		Watches(&v1alpha1.IPPool{}, poolEvents()).
		Watches(&v1alpha1.IPBlock{}, Later(func(o client.Object) []string { return r.Pools.InDomain(o.(*v1alpha1.IPBlock).Spec.Domain) })).
		Watches(&v1alpha1.IPReservation{}, Later(func(o client.Object) []string { return r.Pools.InDomain(o.(*v1alpha1.IPReservation).Spec.Domain) }),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(lead(r))
}

// poolEvents enqueues a pool at once if it is created, deleted or its spec changes, and
// after StatusDelay if its status was written. While counts change all the time, each
// Reconcile writes a status, which without the delay would trigger the next at once.
func poolEvents() handler.EventHandler {
	now := &handler.EnqueueRequestForObject{}
	gathered := Later(func(o client.Object) []string { return []string{o.GetName()} })
	return handler.Funcs{
		CreateFunc: now.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() {
				now.Update(ctx, e, q)
				return
			}
			gathered.Update(ctx, e, q)
		},
		DeleteFunc: now.Delete,
	}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Later enqueues, after StatusDelay, the objects whose names a changed object maps to.
func Later(names func(client.Object) []string) handler.EventHandler {
	return EnqueueAfter(StatusDelay, names)
}

// EnqueueAfter enqueues, after delay, the objects whose names a changed object maps to. An
// update maps both the old and the new object.
func EnqueueAfter(delay time.Duration, names func(client.Object) []string) handler.EventHandler {
	enqueue := func(o client.Object, q queue) {
		for _, name := range names(o) {
			q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}, delay)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			enqueue(e.ObjectOld, q)
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q) },
	}
}

// Reconcile writes the status of one pool if it differs.
func (r *PoolStatus) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Synced() {
		return ctrl.Result{RequeueAfter: StatusDelay}, nil
	}
	o := &v1alpha1.IPPool{}
	if err := r.Client.Get(ctx, req.NamespacedName, o); err != nil {
		r.forget(req.Name)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	after := o.DeepCopy()
	var again time.Duration
	pool, err := Parse(o)
	if err != nil {
		meta.SetStatusCondition(&after.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalid, Message: run.ClipTo(err.Error(), run.MaxMessage), ObservedGeneration: o.Generation,
		})
		r.forget(o.Name)
		r.Gauges.Valid(o.Name, false)
	} else {
		r.Gauges.Valid(o.Name, true)
		again = r.validStatus(after, r.Pools.Without(pool.Pool))
	}
	if equality.Semantic.DeepEqual(o.Status, after.Status) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write status of pool %s: %w", o.Name, err)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func (r *PoolStatus) forget(pool string) {
	r.forecast.forget(pool)
	r.Gauges.NoPool(pool)
}

// validStatus sets the status and the gauges of a valid pool. It returns when to reconcile
// the pool again: time alone frees cooling addresses and lowers rates, and no block changes
// when the store learns the outcome of a write.
func (r *PoolStatus) validStatus(o *v1alpha1.IPPool, pool *ipam.Pool) time.Duration {
	all := r.Store.Counts(pool)
	for state, n := range map[string]uint64{"free": all.Free, "allocated": all.Allocated, "cooling": all.Cooling, "held": all.Held, "reserved": all.Reserved} {
		r.Gauges.Pool(o.Name, state, float64(n))
	}
	exhausted := ""
	var (
		soonest time.Duration
		filling bool
	)
	for _, f := range pool.Families() {
		c := r.Store.Counts(pool, f)
		if c.Free == 0 && exhausted == "" {
			exhausted = fmt.Sprintf("no %s address is left: %s", f, c)
		}
		if in, ok := r.forecast.note(family{o.Name, f}, c, time.Now()); ok && (!filling || in < soonest) {
			soonest, filling = in, true
		}
	}
	r.Gauges.Exhausts(o.Name, soonest, filling)
	countStatus(o, all, exhausted)
	r.showAudit(o, pool)
	switch {
	case r.Store.Behind():
		return StatusDelay
	case all.Cooling > 0:
		return min(forecastStep, pool.Cooldown())
	default:
		return forecastStep
	}
}

// countStatus sets the counts and conditions of a status. exhausted is the message if a
// family has no address left, since a pod needs an address of each family; otherwise it is
// empty.
func countStatus(o *v1alpha1.IPPool, c ipam.Counts, exhausted string) {
	s := &o.Status
	s.Usable, s.Free, s.Allocated = signed(c.Usable), signed(c.Free), signed(c.Allocated)
	s.Cooling, s.Held, s.Reserved = signed(c.Cooling), signed(c.Held), signed(c.Reserved)
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionTrue,
		Reason:             v1alpha1.ReasonValid,
		Message:            "addresses can be taken",
		ObservedGeneration: o.Generation,
	})
	left := metav1.Condition{
		Type:               v1alpha1.ConditionExhausted,
		Status:             metav1.ConditionFalse,
		Reason:             "AddressesLeft",
		ObservedGeneration: o.Generation,
	}
	if exhausted != "" {
		left.Status, left.Reason, left.Message = metav1.ConditionTrue, "NoAddressLeft", exhausted
	}
	meta.SetStatusCondition(&s.Conditions, left)
}

func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
