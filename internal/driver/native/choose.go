package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Ensure implements driver.Driver. It tries the pools in order. All addresses of an
// interface come from one pool, or, with Asks.EachPool, one address per family from each.
func (d *Driver) Ensure(ctx context.Context, asked *driver.Request) (*driver.Attachment, error) {
	r := newRequest(asked)
	a, err := d.obtain(ctx, r)
	if err == nil || r.Reference == "" || errors.Is(err, fault.ErrUnavailable) {
		return a, err
	}
	return nil, errors.Join(err, d.cfg.Claims.Refused(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Reference}, r.PodName, err))
}

// obtain returns the interface that the owner has, or a new one.
func (d *Driver) obtain(ctx context.Context, r *request) (*driver.Attachment, error) {
	held, err := d.store.Resolved(ctx, HolderOf(r.Owner))
	if err != nil {
		return nil, err
	}
	if err := d.migrate(ctx, r, held); err != nil {
		return nil, err
	}
	if r.EachPool {
		return d.each(ctx, r)
	}
	names := d.cfg.Pools
	if len(r.Pools) > 0 {
		names = r.Pools
	}
	if len(held) > 0 {
		a, err := d.takeHeld(ctx, names, held, r)
		switch {
		case err == nil:
			return d.withHeldClaim(ctx, names, r, a)
		case !errors.Is(err, fault.ErrExhausted):
			return nil, err
		}
		// The owner has an address of one family, and the pool has none left of the other.
		// No record names the address, so another pool may serve the pod.
	}
	var refused refusals
	for _, name := range d.claimedFirst(names, r) {
		a, err := d.fromPool(ctx, name, r)
		if err == nil {
			return d.withHeldClaim(ctx, names, r, a)
		}
		if !nextMayHelp(err) {
			return nil, fmt.Errorf("pool %s: %w", name, err)
		}
		refused = append(refused, refusal{name, err})
	}
	return nil, refused.err()
}

// withHeldClaim returns a if it names the claim of all addresses that the owner has.
// Otherwise another leader took them before, with another claim and from an overlapping
// pool. withHeldClaim then returns an attachment that names that pool and that claim.
func (d *Driver) withHeldClaim(ctx context.Context, names []string, r *request, a *driver.Attachment) (*driver.Attachment, error) {
	held := d.store.Held(HolderOf(r.Owner))
	if !slices.ContainsFunc(held, func(l block.Lease) bool { return l.Claim != a.Interface.Claim }) {
		return a, nil
	}
	return d.takeHeld(ctx, names, held, r)
}

// takeHeld returns an attachment with the addresses that the owner already has, from
// before a crash or from an earlier call. It does not check whether the pool would still
// serve the pod. If several pools cover the addresses, it prefers the pool whose claim the
// addresses have.
func (d *Driver) takeHeld(ctx context.Context, names []string, held []block.Lease, r *request) (*driver.Attachment, error) {
	var best Pool
	most := 0
	for _, name := range slices.Concat(names, d.pools.Names()) {
		pool, err := d.pools.Get(name)
		if err != nil {
			continue
		}
		n := 0
		for _, l := range held {
			if l.Domain != pool.Domain() || !pool.Covers(l.Addr) {
				continue
			}
			n += 2
			if key, ok := claimOf(pool, r); ok == (l.Claim != "") && (!ok || l.Claim == key.String()) {
				n++
			}
		}
		if n > most {
			best, most = pool, n
		}
	}
	if most == 0 {
		return nil, fmt.Errorf("%w: the pod already has %s of domain %s, and no usable pool has it in its ranges: restore the pool, or delete the pod",
			fault.ErrNotFound, held[0].Addr, held[0].Domain)
	}
	a, err := d.take(ctx, best, r)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", best.Name(), err)
	}
	return a, nil
}

// each takes addresses from every pool of the request. All takes have the same owner, so
// overlapping pools may yield the same address, which the interface then has once.
func (d *Driver) each(ctx context.Context, r *request) (*driver.Attachment, error) {
	whole := &driver.Attachment{}
	parts, err := d.split(r)
	if err != nil {
		return nil, err
	}
	if err := d.writable(r); err != nil {
		return nil, err
	}
	for i, name := range r.Pools {
		a, err := d.part(ctx, name, parts[i])
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", name, err)
		}
		if i == 0 {
			whole = a
			continue
		}
		merge(&whole.Interface, a.Interface)
	}
	return whole, nil
}

// writable returns nil if a record with the addresses of all pools together would be
// valid. Errors: fault.ErrInvalid, and those of Pools.Get.
func (d *Driver) writable(r *request) error {
	var whole v1alpha1.Interface
	var addresses []string
	for i, name := range r.Pools {
		pool, err := d.pools.Get(name)
		if err != nil {
			return err
		}
		planned := d.planned(pool, r)
		addresses = append(addresses, planned.Addresses...)
		if i == 0 {
			whole = planned
			continue
		}
		merge(&whole, planned)
	}
	whole.Addresses = addresses // the most there can be: overlapping pools yield fewer
	return writable(whole, r)
}

// part takes addresses from one of several pools. If the owner already has addresses of
// the pool, part does not check whether the pool would still serve the pod.
func (d *Driver) part(ctx context.Context, name string, r *request) (*driver.Attachment, error) {
	pool, err := d.pools.Get(name)
	if err != nil {
		return nil, err
	}
	has := func(l block.Lease) bool { return l.Domain == pool.Domain() && pool.Covers(l.Addr) }
	if slices.ContainsFunc(d.store.Held(HolderOf(r.Owner)), has) {
		return d.take(ctx, pool, r)
	}
	return d.fromPool(ctx, name, r)
}

// split returns one request per pool, with the pool's own claims and the requested
// addresses that it covers. Errors: fault.ErrInvalid if no pool covers an address, and
// those of Pools.Get.
func (d *Driver) split(r *request) ([]*request, error) {
	parts := make([]*request, len(r.Pools))
	placed := map[netip.Addr]bool{}
	for i, name := range r.Pools {
		pool, err := d.pools.Get(name)
		if err != nil {
			return nil, err
		}
		part := *r
		part.Addresses, part.Sticky = nil, claimsIn(r.Sticky, name)
		for _, a := range r.Addresses {
			if pool.Covers(a) {
				part.Addresses, placed[a] = append(part.Addresses, a), true
			}
		}
		parts[i] = &part
	}
	for _, a := range r.Addresses {
		if !placed[a] {
			return nil, fmt.Errorf("%w: address %s is in no range of the pools %s", fault.ErrInvalid, a, strings.Join(r.Pools, ", "))
		}
	}
	return parts, nil
}

// claimsIn returns the names of the claims for one of several pools. A claim holds one
// address per family and each pool yields one, so each pool needs a claim of its own.
func claimsIn(sticky map[v1alpha1.Sticky]string, pool string) map[v1alpha1.Sticky]string {
	out := make(map[v1alpha1.Sticky]string, len(sticky))
	for kind, claim := range sticky {
		out[kind] = claim + "." + pool
	}
	return out
}

// merge adds the addresses, gateways, routes and claim of a further pool. An address, a
// gateway of a family, and a claim that whole already has are not added.
func merge(whole *v1alpha1.Interface, more v1alpha1.Interface) {
	address := func(cidr string) string { a, _, _ := strings.Cut(cidr, "/"); return a }
	for _, a := range more.Addresses {
		if !slices.ContainsFunc(whole.Addresses, func(b string) bool { return address(a) == address(b) }) {
			whole.Addresses = append(whole.Addresses, a)
		}
	}
	for _, gw := range more.Gateways {
		is4 := func(text string) bool { return !strings.Contains(text, ":") }
		if !slices.ContainsFunc(whole.Gateways, func(g string) bool { return is4(g) == is4(gw) }) {
			whole.Gateways = append(whole.Gateways, gw)
		}
	}
	whole.Routes = append(slices.Clip(whole.Routes), more.Routes...)
	if whole.Claim == "" {
		whole.Claim = more.Claim
	}
}

// fromPool takes an interface from one pool, if the pool's selectors, networks and quota
// admit the pod.
func (d *Driver) fromPool(ctx context.Context, name string, r *request) (*driver.Attachment, error) {
	pool, err := d.pools.Get(name)
	if err != nil {
		return nil, err
	}
	own := d.cfg.Namespace
	if slices.Contains(d.cfg.Pools, name) {
		// A pool of the default network serves the operator's networks only if it is
		// opened to them.
		own = ""
	}
	if err := pool.admits(r, own); err != nil {
		return nil, err
	}
	if pool.PerNamespace > 0 && !d.joins(pool, r) {
		claim := ""
		if key, ok := claimOf(pool, r); ok {
			claim = key.String()
		}
		used := func() int { return d.store.UsedBy(r.Namespace, pool.Pool, claim) }
		leave, err := d.quotas.enter(ctx, tenant{name, r.Namespace}, pool.PerNamespace, used)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return d.take(ctx, pool, r)
}

// nextMayHelp reports whether another pool may be tried after err. It may not if the
// outcome of a take is unknown (the pod would have two addresses), or if another holder
// has the requested address.
func nextMayHelp(err error) bool {
	return errors.Is(err, fault.ErrExhausted) || errors.Is(err, fault.ErrInvalid) || errors.Is(err, fault.ErrNotFound)
}

// refusal is a pool that serves nothing, with the reason.
type refusal struct {
	pool string
	err  error
}

type refusals []refusal

// err returns an error that names every pool with its reason: fault.ErrExhausted if any
// pool is exhausted, so that waiting may help; otherwise fault.ErrInvalid if any reason
// is; otherwise fault.ErrNotFound. A single refusal keeps its own sentinel.
func (r refusals) err() error {
	if len(r) == 1 {
		return fmt.Errorf("pool %s: %w", r[0].pool, r[0].err)
	}
	texts := make([]string, 0, len(r))
	exhausted, invalid := false, false
	for _, n := range r {
		texts = append(texts, fmt.Sprintf("pool %s: %v", n.pool, n.err))
		exhausted = exhausted || errors.Is(n.err, fault.ErrExhausted)
		invalid = invalid || errors.Is(n.err, fault.ErrInvalid)
	}
	kind := fault.ErrNotFound
	switch {
	case exhausted:
		kind = fault.ErrExhausted
	case invalid:
		kind = fault.ErrInvalid
	}
	return fmt.Errorf("%w: no pool gives an address: %s", kind, strings.Join(texts, "; "))
}
