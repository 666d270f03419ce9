package native

import (
	"context"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// statusDelay gathers changes of a pool's blocks into one write of its status.
const statusDelay = time.Second

// Gauge is told the counts of a pool when they change.
type Gauge func(pool, state string, count float64)

// PoolStatus keeps the status of IPPools.
type PoolStatus struct {
	Client client.Client
	Pools  *Pools
	Store  *block.Store
	Gauge  Gauge
}

// SetupWithManager registers the reconciler.
func (r *PoolStatus) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("pools").
		For(&v1alpha1.IPPool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.IPBlock{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { r.enqueue(e.Object, q) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { r.enqueue(e.ObjectNew, q) },
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { r.enqueue(e.Object, q) },
		}).
		WithOptions(ctrlcontroller.Options{EnableWarmup: new(true)}).
		Complete(r)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (r *PoolStatus) enqueue(o client.Object, q queue) {
	for _, name := range r.Pools.InDomain(o.(*v1alpha1.IPBlock).Spec.Domain) {
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}, statusDelay)
	}
}

// Reconcile writes the status of one pool when it differs.
func (r *PoolStatus) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.IPPool{}
	if err := r.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	after := o.DeepCopy()
	var again time.Duration
	pool, err := parse(o)
	if err != nil {
		invalidStatus(after, err)
	} else {
		counts := r.Store.Counts(pool.Pool)
		countStatus(after, counts)
		r.report(o.Name, counts)
		if counts.Cooling > 0 {
			again = pool.Cooldown() // by then addresses have become free without any event
		}
	}
	if equality.Semantic.DeepEqual(o.Status, after.Status) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write status of pool %s: %w", o.Name, err)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func (r *PoolStatus) report(pool string, c ipam.Counts) {
	for state, n := range map[string]uint64{"free": c.Free, "allocated": c.Allocated, "cooling": c.Cooling, "held": c.Held, "reserved": c.Reserved} {
		r.Gauge(pool, state, float64(n))
	}
}

func invalidStatus(o *v1alpha1.IPPool, cause error) {
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionFalse,
		Reason:             v1alpha1.ReasonInvalid,
		Message:            cause.Error(),
		ObservedGeneration: o.Generation,
	})
}

func countStatus(o *v1alpha1.IPPool, c ipam.Counts) {
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
	exhausted := metav1.Condition{
		Type:               v1alpha1.ConditionExhausted,
		Status:             metav1.ConditionFalse,
		Reason:             "AddressesLeft",
		ObservedGeneration: o.Generation,
	}
	if c.Free == 0 {
		exhausted.Status, exhausted.Reason, exhausted.Message = metav1.ConditionTrue, "NoAddressLeft", c.String()
	}
	meta.SetStatusCondition(&s.Conditions, exhausted)
}

func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
