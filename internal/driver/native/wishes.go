package native

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// Asks is the driver's own part of a driver.Request: the pools and claims that a pod and a
// network request.
type Asks struct {
	// Pools that are requested, in order; empty for the pools of the default network.
	Pools []string
	// EachPool requests addresses of each of Pools, not of the first that serves the pod.
	// Request.Addresses then has at most one address per family of each pool.
	EachPool bool
	// Claim names the IPClaim, in the pod's namespace, that the pod requests; may be empty.
	Claim string
	// ClaimText is the pod's own text for Claim, if it differs from the name; it is
	// ignored if Claim is empty.
	ClaimText string
	// Sticky names, by stickiness of the pool, the claim in the pod's namespace that the
	// pod has if Claim is empty.
	Sticky map[v1alpha1.Sticky]string
	// Owners are the owners of those claims: a claim is deleted with its owner.
	Owners map[v1alpha1.Sticky]metav1.OwnerReference
	// Launcher is set if the pod is a launcher of a virtual machine.
	Launcher pod.Launcher
	// Reference names the IPAMClaim that the pod requests; empty for none. It takes
	// precedence over the claims above.
	Reference string
}

// Read is driver.Networks.Read. The pools and the claim that a pod's annotations request apply
// to its default interface on the default network only.
func Read(p *corev1.Pod, i *pod.Interface) (any, error) {
	pools, err := pod.Pools(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	wishes, err := pod.WishesOf(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	reference := i.ClaimReference
	if i.Default {
		reference = cmp.Or(reference, wishes.Reference)
	}
	if !i.Annotated() {
		return &Asks{
			Pools: i.Pools, EachPool: i.EachPool,
			Sticky: furtherClaims(wishes.Sticky, i.Name), Owners: wishes.Owners,
			Launcher: wishes.Launcher, Reference: reference,
		}, nil
	}
	return &Asks{
		Pools: pools,
		Claim: wishes.Claim, ClaimText: wishes.ClaimText,
		Sticky: wishes.Sticky, Owners: wishes.Owners,
		Launcher: wishes.Launcher, Reference: reference,
	}, nil
}

// furtherClaims returns the claims that a pod has in sticky pools for a further interface.
func furtherClaims(byDefault map[v1alpha1.Sticky]string, iface string) map[v1alpha1.Sticky]string {
	out := make(map[v1alpha1.Sticky]string, len(byDefault))
	for sticky, claim := range byDefault {
		out[sticky] = pod.ClaimOn(claim, iface)
	}
	return out
}

// request is a driver.Request with its Asks decoded.
type request struct {
	driver.Request
	Asks
	// sources are the launchers from which the pod's virtual machine may migrate to the
	// pod, as holders of an interface of the same name.
	sources []ipam.Holder
}

// newRequest returns a copy, so that the driver.Request is not changed.
func newRequest(asked *driver.Request) *request {
	r := &request{Request: *asked}
	if asks, ok := asked.Asks.(*Asks); ok {
		r.Asks = *asks
	}
	return r
}

// claims is the part of ipclaim.Keeper that the driver uses.
type claims interface {
	// Obtain returns the addresses and the MAC of a claim. A claim that does not exist is
	// created as making describes. Errors: fault.ErrInvalid, fault.ErrUnavailable, and
	// those of making.Serves.
	Obtain(ctx context.Context, key types.NamespacedName, making Making) (Obtained, error)
	// Has returns the addresses that are taken or held for a claim, the oldest first.
	Has(key types.NamespacedName) []block.Lease
	// Refused reports in the status of an IPAMClaim why a pod that references it gets no
	// addresses.
	Refused(ctx context.Context, key types.NamespacedName, pod string, why error) error
}

// Obtained are the properties of a claim.
type Obtained struct {
	// Addresses that the claim requests.
	Addresses []netip.Addr
	// MAC of the claim's pods.
	MAC string
}

// Making describes a claim that may have to be created.
type Making struct {
	// Text becomes spec.text: the pod's own text for the claim; may be empty.
	Text string
	// Owner of the claim, which is deleted with it; nil for none. A claim that is owned by
	// the instance of a machine is owned by the machine instead, unless UntilStopped is
	// set: then it ends with the instance, and holds its addresses until then.
	Owner        *metav1.OwnerReference
	UntilStopped bool
	// Reference names the IPAMClaim that owns the claim; empty for none.
	Reference string
	// Serves returns nil if a pod could get an address with the claim. If it fails, no
	// claim is created.
	Serves func() error
}

// claimOf returns the claim with which a pod draws from a pool: that of the IPAMClaim or the
// claim that the pod names, otherwise the claim of the pool's stickiness; ok is false for none.
func claimOf(pool Pool, r *request) (key types.NamespacedName, ok bool) {
	name := r.Claim
	if r.Reference != "" {
		name = pod.ClaimOfReference(r.Reference)
	}
	if name == "" {
		name = r.Sticky[pool.Sticky]
	}
	return types.NamespacedName{Namespace: r.Namespace, Name: name}, name != ""
}

// textOf returns the pod's own text for the claim that it names; empty if that is the
// claim's name.
func textOf(r *request) string {
	if r.Claim == "" {
		return ""
	}
	return r.ClaimText
}

// withClaimText puts the pod's own text for its claim before an error that has only the
// claim's name.
func withClaimText(r *request, err error) error {
	if text := textOf(r); text != "" {
		return fmt.Errorf("claim %q: %w", text, err)
	}
	return err
}

// blockRequest returns the request to the block store for a pod and a pool, and the MAC of
// the pod's claim; an empty one if it has no claim. It adds the addresses that the claim requests, except in a family in which the pod itself requests
// an address or already has one: people may have changed the claim since the pod got its
// address.
func (d *Driver) blockRequest(ctx context.Context, pool Pool, r *request) (out block.Request, mac string, err error) {
	out = block.Request{Holder: HolderOf(r.Owner), Addresses: r.Addresses}
	key, ok := claimOf(pool, r)
	if !ok {
		return out, "", nil
	}
	out.Claim, out.Beside = key.String(), r.sources
	if pool.PerNode() {
		return out, "", nil // no claim is created: the store refuses the request with the reason
	}
	making := Making{Text: textOf(r), Serves: func() error { return d.store.Serves(pool.Pool, out) }}
	making.Reference = r.Reference
	if owner, ok := r.Owners[pool.Sticky]; ok && r.Claim == "" && r.Reference == "" {
		making.Owner = &owner
	}
	claim, err := d.cfg.Claims.Obtain(ctx, key, making)
	if err != nil {
		return block.Request{}, "", err
	}
	if d.joins(pool, r) {
		return out, claim.MAC, nil // the claim's request, if it has changed since, is for the next launcher
	}
	before := slices.Clone(r.Addresses)
	for _, l := range d.store.Held(HolderOf(r.Owner)) {
		if l.Domain == pool.Domain() && pool.Covers(l.Addr) {
			before = append(before, l.Addr)
		}
	}
	for _, a := range claim.Addresses {
		if !slices.ContainsFunc(before, func(b netip.Addr) bool { return ipam.FamilyOf(a) == ipam.FamilyOf(b) }) {
			out.Addresses = append(slices.Clip(out.Addresses), a)
		}
	}
	return out, claim.MAC, nil
}

// claimedFirst returns the names with the pools first that allow an address of the pod's
// claim.
func (d *Driver) claimedFirst(names []string, r *request) []string {
	if r.Claim == "" && r.Reference == "" && len(r.Sticky) == 0 {
		return names
	}
	has := func(name string) bool {
		pool, err := d.pools.Get(name)
		if err != nil {
			return false
		}
		key, ok := claimOf(pool, r)
		return ok && slices.ContainsFunc(d.cfg.Claims.Has(key), func(l block.Lease) bool {
			return l.Domain == pool.Domain() && (pool.Allows(l.Addr) || l.Holder != (ipam.Holder{}) && pool.Covers(l.Addr))
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
