package native

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/objects"
)

// policy is what a pool says of addresses on a node that is unreachable.
type policy struct {
	name, domain string
	// pool is nil when the spec cannot be read: then any address may be its.
	pool *ipam.Pool
	// after is how long they wait; 0 is for ever.
	after time.Duration
}

func policyOf(o *v1alpha1.IPPool) policy {
	p := policy{name: o.Name, domain: o.Spec.Domain}
	if pool, err := objects.Pool(o); err == nil {
		p.pool, p.domain = pool, pool.Domain()
	}
	if o.Spec.UnreachablePolicy == v1alpha1.UnreachableReclaimAfter && o.Spec.ReclaimAfter != nil {
		p.after = o.Spec.ReclaimAfter.Duration
	}
	return p
}

func (p policy) covers(a netip.Addr) bool { return p.pool == nil || p.pool.Covers(a) }

// ReclaimAfter is driver.Parts.ReclaimAfter, by the policy of the pools.
func ReclaimAfter(ctx context.Context, from client.Reader, interfaces []v1alpha1.Interface) (time.Duration, error) {
	var pools v1alpha1.IPPoolList
	if err := from.List(ctx, &pools); err != nil {
		return 0, fmt.Errorf("read IPPools: %w", err)
	}
	return reclaimAfter(interfaces, pools.Items), nil
}

// reclaimAfter is how long the addresses of interfaces wait for a node that is
// unreachable: as long as the one that waits longest; 0 is for ever.
func reclaimAfter(interfaces []v1alpha1.Interface, pools []v1alpha1.IPPool) time.Duration {
	policies := make([]policy, 0, len(pools))
	for i := range pools {
		policies = append(policies, policyOf(&pools[i]))
	}
	var longest time.Duration
	for _, iface := range interfaces {
		if len(iface.Addresses) == 0 {
			return 0
		}
		for _, cidr := range iface.Addresses {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return 0
			}
			after := waits(iface, p.Addr(), policies)
			if after == 0 {
				return 0
			}
			longest = max(longest, after)
		}
	}
	return longest
}

// reclaimChanged reports whether a pool has another policy for unreachable nodes.
func reclaimChanged(was, is *v1alpha1.IPPool) bool {
	policy := func(o *v1alpha1.IPPool) metav1.Duration {
		if after := o.Spec.ReclaimAfter; after != nil {
			return *after
		}
		return metav1.Duration{}
	}
	return policy(was) != policy(is)
}

// waits is how long one address of an interface waits. What counts is the pool
// that the record names, where that has the address; an interface may have
// addresses of several pools, and its record names one. Of the others all count
// that have the address; when none is known to, it waits for ever.
func waits(iface v1alpha1.Interface, a netip.Addr, policies []policy) time.Duration {
	for _, p := range policies {
		if p.name == iface.Pool && (iface.Domain == "" || iface.Domain == p.domain) && p.covers(a) {
			return p.after
		}
	}
	var longest time.Duration
	for _, p := range policies {
		switch {
		case iface.Domain == "" || iface.Domain != p.domain || !p.covers(a):
		case p.after == 0:
			return 0
		default:
			longest = max(longest, p.after)
		}
	}
	return longest
}
