package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
)

// activationRetry is how long until a driver is asked again whether an
// interface has become active.
const activationRetry = time.Second

// activate asks the drivers of those interfaces that a node waits for, and
// writes down the ones that carry traffic. Most pods have none.
func (r *Attachments) activate(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) (ctrl.Result, error) {
	after := record.DeepCopy()
	missing := false
	for _, iface := range record.Spec.Interfaces {
		if !iface.WaitForActive || active(record, iface.Name) {
			continue
		}
		d, err := r.driverNamed(iface.Driver)
		if err != nil {
			return ctrl.Result{}, err
		}
		a, err := d.Ensure(ctx, driver.Request{Owner: ownerOf(p, iface.Name), Network: iface.Network, Default: iface.Default})
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("activate interface %s of pod %s: %w", iface.Name, klog.KObj(p), err)
		}
		if !a.Active {
			missing = true
			continue
		}
		after.Status.Interfaces = append(after.Status.Interfaces, v1alpha1.InterfaceStatus{Name: iface.Name, Active: true})
	}
	if len(after.Status.Interfaces) > len(record.Status.Interfaces) {
		if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(record)); err != nil {
			return ctrl.Result{}, fmt.Errorf("write active interfaces of pod %s: %w", klog.KObj(p), err)
		}
	}
	if missing {
		return ctrl.Result{RequeueAfter: activationRetry}, nil
	}
	return ctrl.Result{}, nil
}

func active(record *v1alpha1.PodAttachment, name string) bool {
	return slices.ContainsFunc(record.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool {
		return s.Name == name && s.Active
	})
}
