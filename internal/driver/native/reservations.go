package native

import (
	"context"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/run"
)

// MaxSummary is the largest length of a summary for kubectl, in bytes.
const MaxSummary = 256

// maxInUse is the largest number of addresses that the status of a reservation lists.
const maxInUse = 32

// Reservations writes the status of IPReservations. Pools enforces them.
type Reservations struct {
	Client client.Client
	Pools  *Pools
	Store  *block.Store
	// Synced reports whether the store knows all taken addresses. Until then no
	// reservation is reconciled.
	Synced func() bool
}

// SetupWithManager registers the reconciler. A write of the status triggers another
// Reconcile, as with PoolStatus.
func (r *Reservations) SetupWithManager(mgr ctrl.Manager, lead Lead) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("reservations").
		For(&v1alpha1.IPReservation{}).
		Watches(&v1alpha1.IPBlock{}, r.BlockEvents()).
		Complete(lead(r))
}

// BlockEvents enqueues, after StatusDelay, the reservations with addresses of a changed
// block.
func (r *Reservations) BlockEvents() handler.EventHandler {
	return Later(func(o client.Object) []string {
		b := o.(*v1alpha1.IPBlock)
		prefix, err := netip.ParsePrefix(b.Spec.CIDR)
		if err != nil {
			return nil // no address is ever taken from such a block
		}
		return r.Pools.Reserving(b.Spec.Domain, prefix)
	})
}

// Reconcile writes the status of one reservation if it differs.
func (r *Reservations) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Synced() || r.Store.Behind() {
		return ctrl.Result{RequeueAfter: StatusDelay}, nil
	}
	o := &v1alpha1.IPReservation{}
	if err := r.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	after := o.DeepCopy()
	reservation, problem := ipam.ParseReservation(o.Spec.Domain, o.Spec.Ranges)
	if !r.Pools.withholds(o) || r.Store.Taking(reservation) {
		return ctrl.Result{RequeueAfter: StatusDelay}, nil // it is not in force yet
	}
	held := r.Store.Within(reservation)
	after.Status.InUse, after.Status.Summary = nil, v1alpha1.OneLine(o.Spec.Ranges, MaxSummary)
	for _, l := range held[:min(len(held), maxInUse)] {
		after.Status.InUse = append(after.Status.InUse, l.Addr.String())
	}
	ready := metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             metav1.ConditionTrue,
		Reason:             v1alpha1.ReasonValid,
		Message:            "no address of it is handed out",
		ObservedGeneration: o.Generation,
	}
	switch {
	case problem != nil:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalid, run.ClipTo(problem.Error(), run.MaxMessage)
	case len(held) > 0:
		ready.Message = fmt.Sprintf("no address of it is handed out any more; %d stay with the pods that had them", len(held))
	}
	meta.SetStatusCondition(&after.Status.Conditions, ready)
	if equality.Semantic.DeepEqual(o.Status, after.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write status of reservation %s: %w", o.Name, err)
	}
	return ctrl.Result{}, nil
}
