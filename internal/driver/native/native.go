// Package native is the driver for Fairlead's own address pools: it chooses the pool, asks
// the block store for addresses, and writes the status of pools and reservations.
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

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Name of the driver in records and in the configuration.
const Name = "native"

// routedGateways are the gateways of routed interfaces.
var routedGateways = map[ipam.Family]string{ipam.IPv4: v1alpha1.RoutedGatewayV4, ipam.IPv6: v1alpha1.RoutedGatewayV6}

// Config of the driver.
type Config struct {
	// Pools of the default network, in the order in which they are tried.
	Pools []string
	// Claims hold addresses beyond the life of their pods.
	Claims claims
	// Machines knows the launchers of virtual machines; nil if there are none.
	Machines launchers
	// Namespace is the operator's own: its networks may draw from every pool.
	Namespace string
}

// store is the part of block.Store that the driver uses.
type store interface {
	Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error)
	Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error
	Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error)
	Resolved(ctx context.Context, h ipam.Holder) ([]block.Lease, error)
	Keep(ctx context.Context, l block.Lease, claim string) error
	Serves(p *ipam.Pool, r block.Request) error
	leases
}

// leases are the methods of the store that read memory only.
type leases interface {
	All() iter.Seq[block.Lease]
	Held(h ipam.Holder) []block.Lease
	UsedBy(namespace string, p *ipam.Pool, own string) int
}

// Driver implements driver.Driver.
type Driver struct {
	cfg    Config
	pools  *Pools
	store  store
	quotas quotas
	macs   macs
	// starved are the pods that found no address left.
	starved *starved
}

// New returns a driver that takes addresses of pools from s.
func New(cfg Config, pools *Pools, s store) *Driver {
	return &Driver{cfg: cfg, pools: pools, store: s, quotas: quotas{m: map[tenant]*gate{}}, starved: newStarved()}
}

// take returns an interface with one address per family of the pool: the address that the
// owner already has in the pool, a new one otherwise.
func (d *Driver) take(ctx context.Context, pool Pool, r *request) (*driver.Attachment, error) {
	if err := writable(d.planned(pool, r), r); err != nil {
		return nil, err
	}
	wish, mac, err := d.blockRequest(ctx, pool, r)
	if err != nil {
		return nil, withClaimText(r, err)
	}
	if r.AddressOnly && pool.PerNode() {
		return nil, fmt.Errorf("%w: with placement PerNode it serves only Fairlead's own interfaces: use a pool with placement Shared for another plugin's interface", fault.ErrInvalid)
	}
	if r.Network == v1alpha1.DefaultNetwork && !r.Default && slices.Contains(d.cfg.Pools, pool.Name()) {
		return nil, fmt.Errorf("%w: it is a pool of the pods' default interfaces, and packets to it would leave by two interfaces: name another pool", fault.ErrInvalid)
	}
	wish.Now = d.pools.now(pool)
	if err := d.enterMAC(pool.Domain(), r.MAC, r); err != nil {
		return nil, err // before an address is taken
	}
	leases, err := d.store.Take(ctx, pool.Pool, wish)
	if errors.Is(err, fault.ErrExhausted) {
		d.starved.add(r.Owner, pool.Pool)
	}
	if err != nil {
		if !d.hasAddress(wish.Holder, pool.Domain()) {
			d.macs.leave(macKey{pool.Domain(), r.MAC}, wish.Holder) // no record or release may follow
		}
		return nil, withClaimText(r, err)
	}
	d.starved.remove(r.Owner)
	iface := d.planned(pool, r)
	if iface.Binding.Routed != nil || iface.Binding.Bridge != nil || iface.Binding.Macvlan != nil {
		iface.MAC = cmp.Or(r.MAC, mac) // the other kinds have none of their own
	}
	// Also a requested MAC, again: two pods may have asked for it before either had an address.
	if err := d.enterMAC(pool.Domain(), cmp.Or(r.MAC, iface.MAC), r); err != nil {
		return nil, withClaimText(r, err)
	}
	for i, lease := range leases { // one per family, in the order of pool.Families
		prefix := pool.Prefix(lease.Addr)
		if iface.Binding.Routed != nil {
			prefix = netip.PrefixFrom(lease.Addr, lease.Addr.BitLen())
		}
		iface.Addresses[i] = prefix.String()
	}
	return &driver.Attachment{Interface: iface, Active: true}, nil
}

// planned returns the interface that take would return, before the addresses are known:
// 0.0.0.0/0 and ::/0 stand in their place.
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
	if r.Binding != nil {
		iface.Binding = *r.Binding.DeepCopy()
	}
	if key, ok := claimOf(pool, r); ok {
		iface.Claim = key.String()
	}
	routed := iface.Binding.Routed != nil
	if routed {
		iface.Routes = byNode(pool.Routes)
	}
	for _, f := range pool.Families() {
		iface.Addresses = append(iface.Addresses, anyAddress[f])
		gw := routedGateways[f]
		if !routed {
			own, ok := pool.Gateway(f)
			if !ok {
				continue
			}
			gw = own.String()
		}
		iface.Gateways = append(iface.Gateways, gw)
		if (!r.Default || r.NoDefaultRoute) && routed { // no default route leads to the other interfaces on the pool
			for _, network := range pool.Networks(f) {
				iface.Routes = append(slices.Clip(iface.Routes), v1alpha1.Route{Destination: network.String(), Gateway: gw})
			}
		}
	}
	return iface
}

// byNode returns routes that lead to the node: the gateways of a pool are not on the link of a pod.
func byNode(routes []v1alpha1.Route) []v1alpha1.Route {
	routes = slices.Clone(routes)
	for i, r := range routes {
		if p, err := netip.ParsePrefix(r.Destination); err == nil {
			routes[i].Gateway = routedGateways[ipam.FamilyOf(p.Addr())]
		}
	}
	return routes
}

var anyAddress = map[ipam.Family]string{ipam.IPv4: "0.0.0.0/0", ipam.IPv6: "::/0"}

// writable returns nil if a record with the interface would be valid. Errors:
// fault.ErrInvalid.
func writable(iface v1alpha1.Interface, r *request) error {
	if r.Writable == nil {
		return nil
	}
	if err := r.Writable(iface); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	return nil
}

// binding returns the binding of an interface; addressOnly is Request.AddressOnly.
func (d *Driver) binding(addressOnly bool) v1alpha1.Binding {
	if addressOnly {
		return v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	}
	return v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, ref driver.Ref) error {
	addrs, err := addressesOf(ref.Interface)
	if err != nil || len(addrs) == 0 {
		return err
	}
	if err := d.store.Free(ctx, HolderOf(ref.Owner), ref.Interface.Domain, addrs); err != nil {
		return fmt.Errorf("domain %s: %w", ref.Interface.Domain, err)
	}
	d.macs.leave(macKey{ref.Interface.Domain, ref.Interface.MAC}, HolderOf(ref.Owner))
	d.starved.released(ref.Owner, ref.Interface.Domain)
	return nil
}

// addressesOf returns an interface's addresses without prefix lengths. Errors:
// fault.ErrInvalid.
func addressesOf(i v1alpha1.Interface) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, cidr := range i.Addresses {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("%w: the record's address %q is not in CIDR form", fault.ErrInvalid, cidr)
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, nil
}

// Confirm implements driver.Driver. It reads the blocks from the API server.
func (d *Driver) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	addrs, err := addressesOf(ref.Interface)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	has, err := d.store.Confirm(ctx, HolderOf(ref.Owner), ref.Interface.Domain, addrs)
	switch {
	case err != nil:
		return v1alpha1.Interface{}, fmt.Errorf("domain %s: %w", ref.Interface.Domain, err)
	case len(has) == 0:
		return v1alpha1.Interface{}, fmt.Errorf("%w: pod %s/%s has none of %v any more", fault.ErrNotFound, ref.Namespace, ref.PodName, addrs)
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

// List implements driver.Driver. The addresses of one interface in one domain, of both
// families, are one Ref. A pod's interfaces are sorted by name. Blocks record neither
// network nor pool: any interface but the default one is listed on
// v1alpha1.UnknownNetwork, and the pool is named only if exactly one covers the first
// address.
func (d *Driver) List(context.Context) iter.Seq2[driver.Ref, error] {
	refs := d.refs(d.store.All())
	return func(yield func(driver.Ref, error) bool) {
		for ref := range refs {
			if !yield(ref, nil) {
				return
			}
		}
	}
}

// Of returns the Refs of one owner in the form of List, one per domain; nil if it has no
// address.
func (d *Driver) Of(o driver.Owner) []driver.Ref {
	held := d.store.Held(HolderOf(o))
	if len(held) == 0 {
		return nil
	}
	return slices.Collect(d.refs(slices.Values(held)))
}

// refs yields a Ref for each interface and domain with leases, sorted by owner and domain.
func (d *Driver) refs(all iter.Seq[block.Lease]) iter.Seq[driver.Ref] {
	type key struct{ uid, iface, domain, namespace, pod string }
	leases := map[key][]block.Lease{}
	for lease := range all {
		h := lease.Holder
		k := key{h.PodUID, h.Interface, lease.Domain, h.Namespace, h.Pod}
		leases[k] = append(leases[k], lease)
	}
	order := slices.SortedFunc(maps.Keys(leases), func(a, b key) int {
		return cmp.Or(strings.Compare(a.uid, b.uid), strings.Compare(a.iface, b.iface), strings.Compare(a.domain, b.domain),
			strings.Compare(a.namespace, b.namespace), strings.Compare(a.pod, b.pod))
	})
	soleOf := d.pools.sole()
	return func(yield func(driver.Ref) bool) {
		for _, k := range order {
			if !yield(d.refOf(leases[k], soleOf)) {
				return
			}
		}
	}
}

// refOf returns the Ref of the interface that has the leases. They have one holder and
// one domain.
func (d *Driver) refOf(leases []block.Lease, soleOf func(block.Lease) string) driver.Ref {
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

// HolderOf returns the block store's form of an owner.
func HolderOf(o driver.Owner) ipam.Holder {
	return ipam.Holder{
		PodUID:    string(o.PodUID),
		Interface: o.Interface,
		Namespace: o.Namespace,
		Pod:       o.PodName,
		Node:      o.NodeName,
	}
}
