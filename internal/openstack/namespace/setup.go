package namespace

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// atOnce is the number of networks under work. Neutron makes them one after the other.
	atOnce = 4
	// firstRetry and lastRetry bound the pause before the next try for a network.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// SetupWithManager registers the reconciler and the comparison with the cloud.
func (n *Networks) SetupWithManager(mgr ctrl.Manager, term driver.Term) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("namespacenetworks").
		For(&v1alpha1.NamespaceNetwork{}, builder.WithPredicates(due())).
		Watches(&v1alpha1.NamespaceNetwork{}, n.wakes()).
		WithOptions(ctrlcontroller.Options{
			MaxConcurrentReconciles: atOnce,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(term.Reconciler(n))
	if err != nil {
		return err
	}
	return mgr.Add(run.Everywhere(term.EachTerm(n.Run)))
}

// due selects the records to reconcile: new ones, deleted ones, and those whose network was
// found full or absent. All other changes are the reconciler's own.
func due() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetDeletionTimestamp() == nil && e.ObjectNew.GetDeletionTimestamp() != nil ||
				reported(e.ObjectNew) && !reported(e.ObjectOld)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// reported reports whether Failed has changed a record since it was last reconciled.
func reported(o any) bool {
	nn, ok := o.(*v1alpha1.NamespaceNetwork)
	if !ok {
		return false
	}
	full := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionNetworkFull)
	ready := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionNetworkReady)
	return full != nil && full.Status == metav1.ConditionTrue && full.Reason == reasonNoAddressLeft ||
		ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == reasonChecking
}

// wakes calls the functions of OnChange when a condition in the cache is another, or a record
// is gone.
func (n *Networks) wakes() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) {
			if state(e.ObjectOld) != state(e.ObjectNew) {
				n.wake()
			}
		},
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { n.wake() },
	}
}

// state returns the conditions that decide about waiting pods.
func state(o any) (s struct{ ready, readyReason, full, fullReason string }) {
	nn, ok := o.(*v1alpha1.NamespaceNetwork)
	if !ok {
		return s
	}
	if c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionNetworkReady); c != nil {
		s.ready, s.readyReason = string(c.Status), c.Reason
	}
	if c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionNetworkFull); c != nil {
		s.full, s.fullReason = string(c.Status), c.Reason
	}
	return s
}
