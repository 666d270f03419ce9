package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Store returns what a PortPool keeps of its network.
func (w Network) Store(groups []string) v1alpha1.PortPoolNetwork {
	n := v1alpha1.PortPoolNetwork{ID: w.ID, MTU: int32(min(w.MTU, 65535)), GroupIDs: slices.Sorted(slices.Values(groups))}
	for _, s := range w.Subnets {
		out := v1alpha1.PortPoolSubnet{ID: s.ID, CIDR: s.Prefix.String()}
		if s.Gateway.IsValid() {
			out.Gateway = s.Gateway.String()
		}
		for _, r := range s.Routes[:min(len(s.Routes), maxRoutes)] {
			out.Routes = append(out.Routes, v1alpha1.Route{Destination: r.Destination.String(), Gateway: r.NextHop.String()})
		}
		for _, a := range s.Nameservers[:min(len(s.Nameservers), maxNameservers)] {
			out.Nameservers = append(out.Nameservers, a.String())
		}
		n.Subnets = append(n.Subnets, out)
	}
	return n
}

// Restore is the reverse of Store.
func Restore(n v1alpha1.PortPoolNetwork) (Network, error) {
	w := Network{Network: cloud.Network{ID: n.ID, MTU: int(n.MTU)}}
	for _, s := range n.Subnets {
		prefix, err := netip.ParsePrefix(s.CIDR)
		if err != nil {
			return w, fmt.Errorf("%w: PortPool: subnet %s: CIDR %q: %w", fault.ErrUnavailable, s.ID, s.CIDR, err)
		}
		out := cloud.Subnet{ID: s.ID, NetworkID: n.ID, Prefix: prefix}
		out.Gateway, _ = netip.ParseAddr(s.Gateway) // empty is none
		for _, r := range s.Routes {
			to, err := netip.ParsePrefix(r.Destination)
			via, viaErr := netip.ParseAddr(r.Gateway)
			if err == nil && viaErr == nil {
				out.Routes = append(out.Routes, cloud.Route{Destination: to, NextHop: via})
			}
		}
		for _, text := range s.Nameservers {
			if a, err := netip.ParseAddr(text); err == nil {
				out.Nameservers = append(out.Nameservers, a)
			}
		}
		w.Subnets = append(w.Subnets, out)
	}
	return w, nil
}

// StorePort returns a port as a PortPool keeps it. Errors: fault.ErrUnavailable.
func (w Network) StorePort(p cloud.Port) (v1alpha1.PortPoolPort, error) {
	out := v1alpha1.PortPoolPort{ID: p.ID, MAC: strings.ToLower(p.MAC), Bridge: p.Bridge}
	for _, a := range InOrder(p.Addresses) {
		n := slices.IndexFunc(w.Subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
		if n < 0 {
			return out, fmt.Errorf("%w: port %s: its subnet %s is not known yet", fault.ErrUnavailable, p.ID, a.Subnet)
		}
		out.Addresses = append(out.Addresses, netip.PrefixFrom(a.Addr, w.Subnets[n].Prefix.Bits()).String())
	}
	if len(out.Addresses) == 0 {
		return out, fmt.Errorf("%w: port %s has no address: its network must have a subnet", fault.ErrInvalid, p.ID)
	}
	return out, nil
}

// RestorePort is the reverse of StorePort. Errors: fault.ErrUnavailable.
func (w Network) RestorePort(stored v1alpha1.PortPoolPort) (cloud.Port, error) {
	p := cloud.Port{ID: stored.ID, MAC: stored.MAC, Bridge: stored.Bridge}
	for _, text := range stored.Addresses {
		a, err := netip.ParsePrefix(text)
		if err != nil {
			return p, fmt.Errorf("%w: PortPool: port %s: %w", fault.ErrUnavailable, stored.ID, err)
		}
		n := slices.IndexFunc(w.Subnets, func(s cloud.Subnet) bool { return s.Prefix == a.Masked() })
		if n < 0 {
			return p, fmt.Errorf("%w: port %s: the subnet of its address %s is not known yet", fault.ErrUnavailable, stored.ID, a)
		}
		p.Addresses = append(p.Addresses, cloud.Address{Subnet: w.Subnets[n].ID, Addr: a.Addr()})
	}
	return p, nil
}
