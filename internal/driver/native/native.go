// Package native is the driver whose addresses come from Fairlead's own pools. It chooses
// the pool, asks the block store for addresses, and keeps the status of pools, reservations
// and claims; upkeep, below it, runs all that in the controller.
package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Name of the driver in records and in the configuration.
const Name = "native"

// The gateways of pods on a routed network, the same on every node: each
// node's bridge has them. 169.254.1.1 is link-local (RFC 3927), fe80::1 too
// (RFC 4291 section 2.5.6), so neither takes an address from a pool.
var (
	routedGateway4 = netip.MustParseAddr("169.254.1.1")
	routedGateway6 = netip.MustParseAddr("fe80::1")
)

// Config of the driver.
type Config struct {
	// Pools that the default network draws from, in order.
	Pools []string
	// Bridge that nodes plug its interfaces into.
	Bridge string
	// Claims that keep addresses beyond their pods.
	Claims claims
	// Namespace whose networks may draw from every pool: the operator's own.
	Namespace string
}

// store is what the driver needs of the block store.
type store interface {
	Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error)
	Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error
	Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error)
	Settled(ctx context.Context, h ipam.Holder) ([]block.Lease, error)
	Serves(p *ipam.Pool, r block.Request) error
	leases
}

// leases is what the store remembers.
type leases interface {
	All() iter.Seq[block.Lease]
	Held(h ipam.Holder) []block.Lease
	UsedBy(namespace string, p *ipam.Pool, own string) int
	LastPod(l block.Lease) string
	Latest(h ipam.Holder) time.Time
}

// Driver implements driver.Driver.
type Driver struct {
	cfg    Config
	pools  *Pools
	store  store
	quotas quotas
}

// New returns a driver that draws from pools.
func New(cfg Config, pools *Pools, s store) *Driver {
	return &Driver{cfg: cfg, pools: pools, store: s, quotas: quotas{m: map[tenant]*gate{}}}
}

// take obtains the addresses of an interface from a pool, or finds again those
// that its owner has of it.
func (d *Driver) take(ctx context.Context, pool Pool, r *request) (*driver.Attachment, error) {
	if err := writable(d.planned(pool, r), r); err != nil {
		return nil, err
	}
	wish, err := d.wish(ctx, pool, r)
	if err != nil {
		return nil, calling(r, err)
	}
	if r.AddressOnly && pool.PerNode() {
		return nil, fmt.Errorf("%w: its blocks are routed to nodes, which needs Fairlead's own interface: another plugin needs a pool with placement Shared", driver.ErrInvalid)
	}
	wish.Now = d.pools.now(pool)
	leases, err := d.store.Take(ctx, pool.Pool, wish)
	if err != nil {
		return nil, calling(r, Translate(err))
	}
	iface := d.planned(pool, r)
	for i, lease := range leases { // one for each family, in their order
		iface.Addresses[i] = pool.Prefix(lease.Addr).String()
	}
	return &driver.Attachment{Interface: iface, Active: true}, nil
}

// planned is the interface that a pool gives, before it is known with which addresses:
// in their place it has the families' widest prefixes.
func (d *Driver) planned(pool Pool, r *request) v1alpha1.Interface {
	iface := v1alpha1.Interface{
		Name:    r.Interface,
		Network: r.Network,
		Driver:  Name,
		Default: r.Default,
		Domain:  pool.Domain(),
		Pool:    pool.Name(),
		Routes:  pool.Routes,
		Binding: d.binding(r.AddressOnly),
	}
	if key, ok := claimOf(pool, r); ok {
		iface.Claim = key.String()
	}
	for _, f := range pool.Families() {
		iface.Addresses = append(iface.Addresses, anyAddress(f))
		if gw, ok := gateway(pool.Pool, f); ok {
			iface.Gateways = append(iface.Gateways, gw.String())
		}
	}
	return iface
}

func anyAddress(f ipam.Family) string {
	if f == ipam.IPv4 {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// writable fails with driver.ErrInvalid when an interface cannot be written down.
func writable(iface v1alpha1.Interface, r *request) error {
	if r.Writable == nil {
		return nil
	}
	if err := r.Writable(iface); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return nil
}

// binding of an interface.
func (d *Driver) binding(addressOnly bool) v1alpha1.Binding {
	if addressOnly {
		return v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	}
	return v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: d.cfg.Bridge}}
}

// gateway of a family: the pool's, or where blocks are routed to nodes the
// node itself.
func gateway(p *ipam.Pool, f ipam.Family) (netip.Addr, bool) {
	if gw, ok := p.Gateway(f); ok || !p.PerNode() {
		return gw, ok
	}
	if f == ipam.IPv4 {
		return routedGateway4, true
	}
	return routedGateway6, true
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, ref driver.Ref) error {
	addrs, err := addressesOf(ref.Interface)
	if err != nil || len(addrs) == 0 {
		return err
	}
	if err := d.store.Free(ctx, HolderOf(ref.Owner), ref.Interface.Domain, addrs); err != nil {
		return fmt.Errorf("domain %s: %w", ref.Interface.Domain, Translate(err))
	}
	return nil
}

// addressesOf are an interface's addresses without prefix lengths.
func addressesOf(i v1alpha1.Interface) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, cidr := range i.Addresses {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("%w: the record's address %q is not in CIDR form", driver.ErrInvalid, cidr)
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, nil
}

// Confirm implements driver.Driver: it reads the blocks.
func (d *Driver) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	addrs, err := addressesOf(ref.Interface)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	has, err := d.store.Confirm(ctx, HolderOf(ref.Owner), ref.Interface.Domain, addrs)
	switch {
	case err != nil:
		return v1alpha1.Interface{}, fmt.Errorf("domain %s: %w", ref.Interface.Domain, Translate(err))
	case len(has) == 0:
		return v1alpha1.Interface{}, fmt.Errorf("%w: pod %s/%s has none of %v any more", driver.ErrNotFound, ref.Namespace, ref.PodName, addrs)
	}
	i := ref.Interface
	i.Addresses = nil
	for n, a := range addrs {
		if slices.Contains(has, a) {
			i.Addresses = append(i.Addresses, ref.Interface.Addresses[n])
		}
	}
	return i, nil
}

// List implements driver.Driver. The addresses of one interface, of all
// families, are one entry, and those of a pod come in the order of their names.
// Blocks do not say of which network and pool an address was: another interface
// than the default one is on an unknown network, and the pool is named where only
// one has the address.
func (d *Driver) List(context.Context) iter.Seq2[driver.Ref, error] {
	type key struct{ uid, iface, domain, namespace, pod string }
	leases := map[key][]block.Lease{}
	for lease := range d.store.All() {
		h := lease.Holder
		k := key{h.PodUID, h.Interface, lease.Domain, h.Namespace, h.Pod}
		leases[k] = append(leases[k], lease)
	}
	order := slices.SortedFunc(maps.Keys(leases), func(a, b key) int {
		return cmp.Or(strings.Compare(a.uid, b.uid), strings.Compare(a.iface, b.iface), strings.Compare(a.domain, b.domain),
			strings.Compare(a.namespace, b.namespace), strings.Compare(a.pod, b.pod))
	})
	soleOf := d.pools.sole()
	return func(yield func(driver.Ref, error) bool) {
		for _, k := range order {
			if !yield(d.found(leases[k], soleOf), nil) {
				return
			}
		}
	}
}

// Of is what List has of an interface.
func (d *Driver) Of(o driver.Owner) []driver.Ref {
	held := map[string][]block.Lease{}
	for _, l := range d.store.Held(HolderOf(o)) {
		held[l.Domain] = append(held[l.Domain], l)
	}
	var out []driver.Ref
	if len(held) == 0 {
		return nil
	}
	soleOf := d.pools.sole()
	for _, domain := range slices.Sorted(maps.Keys(held)) {
		out = append(out, d.found(held[domain], soleOf))
	}
	return out
}

// found is what blocks say of an interface of which they have these addresses.
func (d *Driver) found(leases []block.Lease, soleOf func(block.Lease) string) driver.Ref {
	slices.SortFunc(leases, func(a, b block.Lease) int { return a.Addr.Compare(b.Addr) })
	first := leases[0]
	h := first.Holder
	ref := driver.Ref{
		Owner: driver.Owner{
			PodUID:    types.UID(h.PodUID),
			Interface: h.Interface,
			Namespace: h.Namespace,
			PodName:   h.Pod,
			NodeName:  h.Node,
		},
		Interface: v1alpha1.Interface{
			Name:    h.Interface,
			Network: v1alpha1.DefaultNetwork,
			Driver:  Name,
			Domain:  first.Domain,
			Pool:    soleOf(first),
			Claim:   first.Claim,
			Binding: d.binding(h.Interface != v1alpha1.DefaultInterface),
		},
	}
	if h.Interface != v1alpha1.DefaultInterface {
		ref.Interface.Network = v1alpha1.UnknownNetwork
	}
	for _, l := range leases {
		ref.Interface.Addresses = append(ref.Interface.Addresses, netip.PrefixFrom(l.Addr, l.Addr.BitLen()).String())
	}
	return ref
}

// HolderOf is who an owner is to the block store.
func HolderOf(o driver.Owner) ipam.Holder {
	return ipam.Holder{
		PodUID:    string(o.PodUID),
		Interface: o.Interface,
		Namespace: o.Namespace,
		Pod:       o.PodName,
		Node:      o.NodeName,
	}
}

// translated is translate, of nil too.
func translated(err error) error {
	if err == nil {
		return nil
	}
	return Translate(err)
}

// Translate turns the store's sentinels into the driver contract's.
func Translate(err error) error {
	for _, t := range []struct{ from, to error }{
		{block.ErrInvalid, driver.ErrInvalid},
		{block.ErrExhausted, driver.ErrExhausted},
		{block.ErrConflict, driver.ErrConflict},
	} {
		if errors.Is(err, t.from) {
			return fmt.Errorf("%w: %w", t.to, err)
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}
