package controller

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/warn"
)

// Activations runs the Activations of every driver until ctx ends, and enqueues each pod
// that a driver reports. It runs in each term of this process as the leader. It returns
// nil.
func (r *Attachments) Activations(ctx context.Context) error {
	changed := func(o driver.Owner) {
		if q := r.queue.Load(); q != nil { // without a queue no record has been reconciled yet
			(*q).Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.PodName}})
		}
	}
	var all errgroup.Group
	for _, d := range r.Drivers {
		if d.Activations != nil {
			all.Go(func() error { d.Activations(ctx, changed); return nil })
		}
	}
	return all.Wait()
}

// activate writes into the record's status which interfaces carry traffic, for the
// interfaces that the node waits for, and the reason for those that do not: the node
// reports it if it gives up. Most pods have no such interface. A driver enqueues the pod
// when it knows more.
func (r *Attachments) activate(ctx context.Context, s *observed) (ctrl.Result, error) {
	record := s.current
	if !s.served || record == nil || record.DeletionTimestamp != nil || !pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	r.waiting.remove(s.key)
	var now []v1alpha1.InterfaceStatus
	for _, iface := range record.Spec.Interfaces {
		if !iface.WaitForActive {
			continue
		}
		status := v1alpha1.InterfaceStatus{Name: iface.Name, Active: active(record, iface.Name)}
		if !status.Active {
			status.Active, status.Message = r.isActive(record, iface)
		}
		now = append(now, status)
	}
	if slices.Equal(now, record.Status.Interfaces) {
		return ctrl.Result{}, nil
	}
	after := record.DeepCopy()
	after.Status.Interfaces = now
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(record)); err != nil {
		return ctrl.Result{}, fmt.Errorf("write active interfaces of pod %s: %w", s.key, err)
	}
	return ctrl.Result{}, nil
}

// isActive asks the driver of an interface whether the interface is active, and returns
// the reason if it is not.
func (r *Attachments) isActive(record *v1alpha1.PodAttachment, iface v1alpha1.Interface) (active bool, why string) {
	d, err := r.driverNamed(iface.Driver)
	switch {
	case err != nil:
		return false, warn.Clip(err.Error())
	case d.Active == nil:
		return false, fmt.Sprintf("driver %s does not say when its network carries the traffic", iface.Driver)
	}
	active, why = d.Active(driver.Ref{Owner: holderOf(record, iface.Name), Interface: iface})
	switch {
	case active:
		return true, ""
	case why == "":
		return false, fmt.Sprintf("driver %s waits for its network to carry the traffic", iface.Driver)
	default:
		return false, warn.Clip(fmt.Sprintf("driver %s: %s", iface.Driver, why))
	}
}

func active(record *v1alpha1.PodAttachment, name string) bool {
	return slices.ContainsFunc(record.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool {
		return s.Name == name && s.Active
	})
}
