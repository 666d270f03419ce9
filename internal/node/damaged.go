package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// sweepDamaged forgets the damaged records of addresses whose container is no
// more. Until then no PodAttachment that they may be of is said to be unplugged.
func (v *verbs) sweepDamaged(ctx context.Context) error {
	if !v.registry.isSynced() {
		return nil // of which PodAttachments they may be is not known yet
	}
	var errs []error
	for _, k := range v.ledger.damagedAlone() {
		errs = append(errs, v.reapDamaged(ctx, k))
	}
	return errors.Join(errs...)
}

// reapDamaged forgets a damaged record when no namespace has an address that it may
// be about. That none is found is proof only when every namespace was looked into.
func (v *verbs) reapDamaged(ctx context.Context, k addressKey) error {
	return v.manager.Do(ctx, k.String(), func(ctx context.Context) error {
		addrs, err := v.addressesMaybeOf(k)
		if err != nil {
			return err
		}
		if len(addrs) > 0 {
			path, err := v.acks.holding(ctx, addrs)
			if err != nil || path != "" {
				return err
			}
		}
		logr.FromContextOrDiscard(ctx).Info("damaged record is of a sandbox that is gone without a DEL for its addresses", "sandbox", k.containerID, "interface", k.ifName)
		v.metrics.swept.WithLabelValues("addresses").Inc()
		return v.freeAddresses(k)
	})
}

// addressesMaybeOf returns the addresses that a damaged record may be about: those
// of every PodAttachment that it may be of, but for interfaces of ours and such as
// have a record themselves.
func (v *verbs) addressesMaybeOf(k addressKey) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, key := range v.registry.keys() {
		pa := v.registry.get(key)
		if pa == nil || !k.maybeOf(pa.Status.Sandbox) {
			continue
		}
		for _, i := range pa.Spec.Interfaces {
			if i.Binding.AddressOnly == nil || v.ledger.addressesRecorded(pa.UID, i.Name) {
				continue
			}
			its, err := plainAddresses(pa, i)
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, its...)
		}
	}
	return addrs, nil
}

// plainAddresses are those of an interface without their prefix lengths.
func plainAddresses(pa *v1alpha1.PodAttachment, i v1alpha1.Interface) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, cidr := range i.Addresses {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("PodAttachment %s/%s: interface %s: %w", pa.Namespace, pa.Name, i.Name, err)
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, nil
}
