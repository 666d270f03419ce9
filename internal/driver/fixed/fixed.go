// Package fixed is the driver of interfaces that are not scarce: those without addresses,
// those whose network names the addresses, and those whose addresses a plugin on the node
// chooses. It holds nothing, so there is nothing to release or to collect.
package fixed

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

// Name of the driver in records.
const Name = "fixed"

// Driver implements driver.Driver.
type Driver struct{}

// Parts returns the parts of the driver.
func Parts() driver.Parts {
	return driver.Parts{Driver: Driver{}, Networks: driver.Networks{Read: read}}
}

// read is driver.Networks.Read: the addresses that the network names.
func read(_ *corev1.Pod, i *pod.Interface) (any, error) {
	if i.Binding == nil {
		return nil, fmt.Errorf("%w: network %s does not say how its interfaces are plugged: driver %s serves only networks that do", fault.ErrInvalid, i.Network, Name)
	}
	return i.Fixed, nil
}

// Ensure implements driver.Driver. The interface has the addresses that the network names,
// or of these only those that the pod requests. Errors: ErrInvalid if the pod requests
// another address.
func (Driver) Ensure(_ context.Context, r *driver.Request) (*driver.Attachment, error) {
	named, _ := r.Asks.([]netip.Prefix)
	i := v1alpha1.Interface{Name: r.Interface, Network: r.Network, Driver: Name, Default: r.Default, Binding: *r.Binding.DeepCopy()}
	for _, a := range r.Addresses {
		if !slices.ContainsFunc(named, func(p netip.Prefix) bool { return p.Addr() == a }) && r.Binding.Delegate == nil {
			return nil, fmt.Errorf("%w: ips: %s: network %s names its addresses itself: %v; leave ips out, or choose of these", fault.ErrInvalid, a, r.Network, named)
		}
	}
	for _, p := range named {
		if len(r.Addresses) == 0 || slices.Contains(r.Addresses, p.Addr()) {
			i.Addresses = append(i.Addresses, p.String())
		}
	}
	if r.Writable != nil {
		if err := r.Writable(i); err != nil {
			return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
	}
	return &driver.Attachment{Interface: i, Active: true}, nil
}

// Release implements driver.Driver: nothing is held.
func (Driver) Release(context.Context, driver.Ref) error { return nil }

// List implements driver.Driver: nothing is held.
func (Driver) List(context.Context) iter.Seq2[driver.Ref, error] {
	return func(func(driver.Ref, error) bool) {}
}

// Confirm implements driver.Driver: nothing is held.
func (Driver) Confirm(_ context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	return v1alpha1.Interface{}, fmt.Errorf("%w: driver %s holds nothing for pod %s/%s", fault.ErrNotFound, Name, ref.Namespace, ref.PodName)
}
