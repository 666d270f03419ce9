package native

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// policy is a pool's policy for addresses on an unreachable node.
type policy struct {
	name, domain string
	// pool is nil if the spec is invalid: the pool then counts as covering every address.
	pool *ipam.Pool
	// after is how long the addresses wait; 0 is for ever.
	after time.Duration
}

func policyOf(o *v1alpha1.IPPool) policy {
	p := policy{name: o.Name, domain: o.Spec.Domain}
	if pool, err := block.PoolOf(o); err == nil {
		p.pool, p.domain = pool, pool.Domain()
	}
	if o.Spec.UnreachablePolicy == v1alpha1.UnreachableReclaimAfter && o.Spec.ReclaimAfter != nil {
		p.after = o.Spec.ReclaimAfter.Duration
	}
	return p
}

func (p policy) covers(a netip.Addr) bool { return p.pool == nil || p.pool.Covers(a) }

// ReclaimAfter is driver.Evidence.ReclaimAfter: it reads the policies of the IPPools.
func ReclaimAfter(ctx context.Context, from client.Reader, interfaces []v1alpha1.Interface) (time.Duration, error) {
	var pools v1alpha1.IPPoolList
	if err := from.List(ctx, &pools); err != nil {
		return 0, fmt.Errorf("read IPPools: %w", err)
	}
	return reclaimAfter(interfaces, pools.Items), nil
}

// reclaimAfter returns how long the addresses of interfaces wait for an unreachable node:
// the longest wait of any address; 0 is for ever.
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

// reclaimChanged reports whether the policy for unreachable nodes differs.
func reclaimChanged(was, is *v1alpha1.IPPool) bool {
	return !equality.Semantic.DeepEqual(was.Spec.ReclaimAfter, is.Spec.ReclaimAfter)
}

// waits returns how long one address of an interface waits; 0 is for ever. An interface may
// have addresses of several pools, and its record names one of them. If that pool covers
// the address, its policy applies. Otherwise the longest wait of all pools of the domain
// that cover the address applies. If no pool covers it, it waits for ever.
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
