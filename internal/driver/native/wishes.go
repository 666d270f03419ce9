package native

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// Asks is what a pod and a network ask of pools and claims: the driver's own part of a
// driver.Request.
type Asks struct {
	// Pools that the pod asks for, in order; empty for those of the default network.
	Pools []string
	// EachPool asks for addresses of every one of Pools, not of the first that serves the
	// pod. Request.Addresses then has at most one per family of each.
	EachPool bool
	// Claim names the IPClaim, in the pod's namespace, that the pod asks for.
	Claim string
	// ClaimText is what the pod calls that claim, if it is not its name; it says nothing
	// where Claim is empty.
	ClaimText string
	// Sticky names the claim, in the pod's namespace, that the pod has in pools of this
	// stickiness if it asks for none.
	Sticky map[v1alpha1.Sticky]string
	// Owners are what those claims are made for, and end with.
	Owners map[v1alpha1.Sticky]metav1.OwnerReference
	// Former are names that those claims had in an earlier version.
	Former map[v1alpha1.Sticky]string
}

// Read is driver.Parts.Read. What a pod asks for on the default network holds nowhere
// else.
func Read(p *corev1.Pod, i *pod.Interface) (any, error) {
	pools, err := pod.Pools(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	wishes, err := pod.WishesOf(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if i.Network != v1alpha1.DefaultNetwork {
		return &Asks{
			Pools: i.Pools, EachPool: i.EachPool,
			Sticky: furtherClaims(wishes.Sticky, i.Name), Owners: wishes.Owners, Former: furtherClaims(wishes.Former, i.Name),
		}, nil
	}
	return &Asks{
		Pools: pools,
		Claim: wishes.Claim, ClaimText: wishes.ClaimText,
		Sticky: wishes.Sticky, Owners: wishes.Owners, Former: wishes.Former,
	}, nil
}

// furtherClaims are those that a pod has in sticky pools for a further interface.
func furtherClaims(byDefault map[v1alpha1.Sticky]string, iface string) map[v1alpha1.Sticky]string {
	out := make(map[v1alpha1.Sticky]string, len(byDefault))
	for sticky, claim := range byDefault {
		out[sticky] = pod.ClaimOn(claim, iface)
	}
	return out
}

// request is a driver.Request with what it asks of pools.
type request struct {
	driver.Request
	Asks
}

// newRequest returns a copy: it changes nothing of the driver.Request.
func newRequest(asked *driver.Request) *request {
	r := &request{Request: *asked}
	if asks, ok := asked.Asks.(*Asks); ok {
		r.Asks = *asks
	}
	return r
}

// claims is what the driver needs of IPClaims.
type claims interface {
	// Obtain returns the addresses that a claim asks for. One that does not exist is made
	// as it says.
	Obtain(ctx context.Context, key types.NamespacedName, making Making) ([]netip.Addr, error)
	// Has returns what is taken or held for a claim.
	Has(key types.NamespacedName) []block.Lease
}

// Making says how a claim is made that does not exist.
type Making struct {
	// Text that pods call it by, if there is one.
	Text string
	// Owner that it ends with; nil for none that is known.
	Owner *metav1.OwnerReference
	// Serves says whether making it would help; while it fails, no claim is made.
	Serves func() error
}

// claimOf returns the claim with which a pod draws from a pool: the one that it
// names, else the one that the pool gives it.
func claimOf(pool Pool, r *request) (key types.NamespacedName, ok bool) {
	name := r.Claim
	if name == "" {
		name = r.Sticky[pool.Sticky]
	}
	return types.NamespacedName{Namespace: r.Namespace, Name: name}, name != ""
}

// textOf is what a pod calls the claim that it names; empty for its name.
func textOf(r *request) string {
	if r.Claim == "" {
		return ""
	}
	return r.ClaimText
}

// calling puts the text by which the pod calls its claim before an error, which
// knows its name only.
func calling(r *request, err error) error {
	if text := textOf(r); text != "" {
		return fmt.Errorf("claim %q: %w", text, err)
	}
	return err
}

// wish says what a pod wants of a pool. An address that the pod asks for goes
// before that of its claim, and so does one that it has already: people may have
// changed the claim since.
func (d *Driver) wish(ctx context.Context, pool Pool, r *request) (block.Request, error) {
	out := block.Request{Holder: HolderOf(r.Owner), Addresses: r.Addresses}
	key, ok := claimOf(pool, r)
	if !ok {
		return out, nil
	}
	out.Claim = key.String()
	if pool.PerNode() {
		return out, nil // the store says why not: no claim is made for it
	}
	making := Making{Text: textOf(r), Serves: func() error { return translated(d.store.Serves(pool.Pool, out)) }}
	if owner, ok := r.Owners[pool.Sticky]; ok && r.Claim == "" {
		making.Owner = &owner
	}
	wanted, err := d.cfg.Claims.Obtain(ctx, key, making)
	if err != nil {
		return block.Request{}, err
	}
	before := slices.Clone(r.Addresses)
	for _, l := range d.store.Held(HolderOf(r.Owner)) {
		if l.Domain == pool.Domain() && pool.Covers(l.Addr) {
			before = append(before, l.Addr)
		}
	}
	for _, a := range wanted {
		if !slices.ContainsFunc(before, func(b netip.Addr) bool { return ipam.FamilyOf(a) == ipam.FamilyOf(b) }) {
			out.Addresses = append(slices.Clip(out.Addresses), a)
		}
	}
	return out, nil
}

// byFormerName is the request with the former name of a claim where that has an address
// which nobody but the machine itself had last: so an upgrade keeps it. Several machines
// may have shared the name.
func (d *Driver) byFormerName(r *request) *request {
	kind := v1alpha1.StickyVirtualMachine
	former, machine := r.Former[kind], r.Owners[kind].Name
	if former == "" || machine == "" {
		return r
	}
	has := d.cfg.Claims.Has(types.NamespacedName{Namespace: r.Namespace, Name: former})
	own := func(l block.Lease) bool { return pod.Launches(d.store.LastPod(l), machine) }
	if len(has) == 0 || slices.ContainsFunc(has, func(l block.Lease) bool { return !own(l) }) ||
		len(d.cfg.Claims.Has(types.NamespacedName{Namespace: r.Namespace, Name: r.Sticky[kind]})) > 0 {
		return r
	}
	out := *r
	out.Sticky = maps.Clone(r.Sticky)
	out.Sticky[kind] = former
	return &out
}

// claimedFirst puts the pools first that hand out what the pod's claim has.
func (d *Driver) claimedFirst(names []string, r *request) []string {
	if r.Claim == "" && len(r.Sticky) == 0 {
		return names
	}
	has := func(name string) bool {
		pool, err := d.pools.Get(name)
		if err != nil {
			return false
		}
		key, ok := claimOf(pool, r)
		return ok && slices.ContainsFunc(d.cfg.Claims.Has(key), func(l block.Lease) bool {
			return l.Domain == pool.Domain() && pool.Allows(l.Addr)
		})
	}
	var first, rest []string
	for _, name := range names {
		if has(name) {
			first = append(first, name)
		} else {
			rest = append(rest, name)
		}
	}
	return append(first, rest...)
}
