package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// standIn is the source of IPv4 to pods on a host that has no other: an address for hosts without IPv4 of
// their own (RFC 7600).
var standIn = netip.AddrFrom4([4]byte{192, 0, 0, 8})

// applySources returns the sources of routes to pods. lo keeps the stand-in, because the kernel removes
// routes whose source goes.
func (r *hostRun) applySources() *[]netip.Addr {
	sources := r.want.Sources
	if !r.want.IPv4 || slices.ContainsFunc(sources, netip.Addr.Is4) {
		return &sources
	}
	err := r.conn.Do(link.AddAddress(loopback, netip.PrefixFrom(standIn, standIn.BitLen()), netlink.SCOPE_LINK))
	switch {
	case err == nil:
		r.changed("added address %v to lo", standIn)
	case !errors.Is(err, unix.EEXIST):
		r.failed(err)
		return &sources
	}
	sources = append(slices.Clone(sources), standIn)
	return &sources
}

// applyAddresses gives the tunnel's interfaces the addresses of the node. Masquerading uses an
// address of the outgoing interface as the source.
func (r *hostRun) applyAddresses(ctx context.Context) {
	if r.want.Tunnel == nil {
		return
	}
	var own []netip.Prefix
	for _, a := range r.want.Tunnel.Underlay {
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, a := range r.want.Tunnel.Underlay {
		if index := r.tunnels.index(a); index != 0 {
			r.applyAddressesOf(ctx, tunnelName(a), index, own)
		}
	}
}

// applyAddressesOf gives a link exactly these addresses. The link-local IPv6 address that
// the kernel makes itself may stay.
func (r *hostRun) applyAddressesOf(ctx context.Context, name string, index int, addresses []netip.Prefix) {
	missing := map[netip.Prefix]bool{}
	for _, p := range addresses {
		missing[p] = true
	}
	dev := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	have, err := link.Dump(ctx, "listing the addresses of "+name, func() ([]netlink.Addr, error) {
		return r.host.AddrList(dev, netlink.FAMILY_ALL)
	})
	if err != nil {
		r.failed(err)
		return
	}
	for _, a := range have {
		p, ok := link.ToPrefix(a.IPNet)
		if !ok || missing[p] {
			delete(missing, p)
			continue
		}
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := r.host.AddrDel(dev, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			r.failed(fmt.Errorf("removing address %v from %s: %w", p, name, err))
			continue
		}
		r.changed("removed address %v from %s", p, name)
	}
	for _, p := range addresses {
		if !missing[p] {
			continue
		}
		r.repair(link.AddAddress(index, p, netlink.SCOPE_UNIVERSE), "added address %v to %s", p, name)
	}
}
