package controller

import (
	"context"
	"errors"
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
// writes down which carry traffic, and of the others why not: the node says so
// when it gives up. Most pods have none.
func (r *Attachments) activate(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) (ctrl.Result, error) {
	var now []v1alpha1.InterfaceStatus
	var errs []error
	for _, iface := range record.Spec.Interfaces {
		if !iface.WaitForActive {
			continue
		}
		s := v1alpha1.InterfaceStatus{Name: iface.Name, Active: active(record, iface.Name)}
		if !s.Active {
			var err error
			s.Active, err = r.isActive(ctx, p, iface)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("activate interface %s of pod %s: %w", iface.Name, klog.KObj(p), err))
				s.Message = clip(err.Error())
			case !s.Active:
				s.Message = fmt.Sprintf("driver %s waits for its network to carry the traffic", iface.Driver)
			}
		}
		now = append(now, s)
	}
	if !slices.Equal(now, record.Status.Interfaces) {
		after := record.DeepCopy()
		after.Status.Interfaces = now
		if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(record)); err != nil {
			return ctrl.Result{}, fmt.Errorf("write active interfaces of pod %s: %w", klog.KObj(p), err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	if slices.ContainsFunc(now, func(s v1alpha1.InterfaceStatus) bool { return !s.Active }) {
		return ctrl.Result{RequeueAfter: activationRetry}, nil
	}
	return ctrl.Result{}, nil
}

// isActive asks the driver of an interface.
func (r *Attachments) isActive(ctx context.Context, p *corev1.Pod, iface v1alpha1.Interface) (bool, error) {
	d, err := r.driverNamed(iface.Driver)
	if err != nil {
		return false, err
	}
	a, err := d.Ensure(ctx, &driver.Request{Owner: ownerOf(p, iface.Name), Network: iface.Network, Default: iface.Default})
	if err != nil {
		return false, err
	}
	return a.Active, nil
}

func active(record *v1alpha1.PodAttachment, name string) bool {
	return slices.ContainsFunc(record.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool {
		return s.Name == name && s.Active
	})
}
