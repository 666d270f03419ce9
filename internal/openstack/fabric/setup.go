package fabric

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// Term runs work only while this process leads (driver.Term).
type Term interface {
	// Reconciler returns a reconciler that calls r while this process leads.
	Reconciler(r reconcile.Reconciler) reconcile.Reconciler
	// EachTerm returns a function that runs f once in each term.
	EachTerm(f func(context.Context) error) func(context.Context) error
}

// SetupWithManager registers the reconciler and the comparison.
func (f *Fabric) SetupWithManager(mgr ctrl.Manager, term Term) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("fabric").
		For(&v1alpha1.NodeNetwork{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, addressesChanged()))).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(machineChanged())).
		Watches(&v1alpha1.IPPool{}, handler.EnqueueRequestsFromMapFunc(f.everyNode), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(f.drifted, &handler.EnqueueRequestForObject{})).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: 4}).
		Complete(term.Reconciler(f))
	if err != nil {
		return err
	}
	return mgr.Add(run.Everywhere(term.EachTerm(f.Run)))
}

// everyNode enqueues all nodes.
func (f *Fabric) everyNode(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1alpha1.NodeNetworkList
	if err := f.Client.List(ctx, &list); err != nil {
		return nil // the comparison finds the change
	}
	out := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		out[i].Name = list.Items[i].Name
	}
	return out
}

// addressesChanged selects updates that change the addresses in the status.
func addressesChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.NodeNetwork)
		after, also := e.ObjectNew.(*v1alpha1.NodeNetwork)
		return ok && also && !slices.Equal(before.Status.Addresses, after.Status.Addresses)
	}}
}

// machineChanged selects Nodes that get the ID of their machine, or go.
func machineChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return ok && also && before.Spec.ProviderID != after.Spec.ProviderID
		},
	}
}

// Forgetter lets NodeNetworks of deleted nodes go in a cluster whose configuration has no
// fabric any more. The recorded entries stay in the cloud, and an event lists them.
type Forgetter struct {
	Client client.Client
	Events events.EventRecorder
}

// SetupWithManager registers the reconciler.
func (r *Forgetter) SetupWithManager(mgr ctrl.Manager, term Term) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("fabric-forgetter").
		For(&v1alpha1.NodeNetwork{}, builder.WithPredicates(predicate.NewPredicateFuncs(left))).
		Complete(term.Reconciler(r))
}

// left selects deleted NodeNetworks that wait for the fabric.
func left(o client.Object) bool {
	return o.GetDeletionTimestamp() != nil && controllerutil.ContainsFinalizer(o, v1alpha1.FabricFinalizer)
}

// Reconcile drops the finalizer of a deleted NodeNetwork.
func (r *Forgetter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	nn := &v1alpha1.NodeNetwork{}
	if err := r.Client.Get(ctx, req.NamespacedName, nn); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !left(nn) {
		return ctrl.Result{}, nil
	}
	if f := nn.Spec.Fabric; f != nil && (len(f.Pairs) > 0 || len(f.Routes) > 0 || f.Group != "") {
		r.Events.Eventf(nn, nil, corev1.EventTypeWarning, "FabricLeft", "Forget",
			"openstack.fabric is not configured, so this stays in the cloud: pairs %v and group %q of port %s, routes %v of router %q", f.Pairs, f.Group, f.Port, f.Routes, f.Router)
	}
	after := nn.DeepCopy()
	controllerutil.RemoveFinalizer(after, v1alpha1.FabricFinalizer)
	err := r.Client.Patch(ctx, after, client.MergeFrom(nn))
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return ctrl.Result{}, err
}
