// Package wiring has what an interface takes over from its network in the cloud: addresses,
// gateways, routes and name servers. It makes no calls.
package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Bounds of an interface in the API.
const (
	maxRoutes      = 64
	maxNameservers = 8
)

// Network is a network with its subnets.
type Network struct {
	cloud.Network
	Subnets []cloud.Subnet
}

// Fill gives an interface the addresses of a port, and what their subnets have. Errors:
// fault.ErrUnavailable if a subnet of the port is not among those of the network.
func (w Network) Fill(i *v1alpha1.Interface, p cloud.Port) error {
	var dns v1alpha1.DNS
	for _, a := range InOrder(p.Addresses) {
		at := slices.IndexFunc(w.Subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
		if at < 0 {
			return fmt.Errorf("%w: port %s: its subnet %s is not known yet", fault.ErrUnavailable, p.ID, a.Subnet)
		}
		s := w.Subnets[at]
		i.Addresses = append(i.Addresses, netip.PrefixFrom(a.Addr, s.Prefix.Bits()).String())
		if s.Gateway.IsValid() {
			addGateway(i, s.Gateway)
		}
		for _, r := range s.Routes {
			switch route := (v1alpha1.Route{Destination: r.Destination.String(), Gateway: r.NextHop.String()}); {
			case r.Destination.Bits() == 0:
				addGateway(i, r.NextHop)
			case len(i.Routes) < maxRoutes && !slices.Contains(i.Routes, route):
				i.Routes = append(i.Routes, route)
			}
		}
		for _, server := range s.Nameservers {
			if text := server.String(); len(dns.Nameservers) < maxNameservers && !slices.Contains(dns.Nameservers, text) {
				dns.Nameservers = append(dns.Nameservers, text)
			}
		}
	}
	if len(dns.Nameservers) > 0 {
		i.DNS = &dns
	}
	return nil
}

// InOrder returns addresses with those of IPv4 first, otherwise in their order: Neutron's
// order of two addresses is not always the same.
func InOrder(addresses []cloud.Address) []cloud.Address {
	out := slices.Clone(addresses)
	slices.SortFunc(out, func(a, b cloud.Address) int { return a.Addr.Compare(b.Addr) })
	return out
}

// addGateway adds the gateway of a family that has none yet.
func addGateway(i *v1alpha1.Interface, g netip.Addr) {
	for _, have := range i.Gateways {
		if a, err := netip.ParseAddr(have); err == nil && a.Is4() == g.Is4() {
			return
		}
	}
	i.Gateways = append(i.Gateways, g.String())
}

// Outline returns a port as it will be, for an interface that has to be writable before the
// port exists. An address that Neutron chooses is the first of its subnet.
func (w Network) Outline(addresses []cloud.Address) cloud.Port {
	p := cloud.Port{ID: "00000000-0000-4000-8000-000000000000", MAC: "fa:16:3e:00:00:00"}
	if addresses == nil {
		for _, s := range w.Subnets {
			addresses = append(addresses, cloud.Address{Subnet: s.ID})
		}
		addresses = addresses[:min(len(addresses), 2)]
	}
	for _, a := range addresses {
		if !a.Addr.IsValid() {
			at := slices.IndexFunc(w.Subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
			a.Addr = w.Subnets[at].Prefix.Addr()
		}
		p.Addresses = append(p.Addresses, a)
	}
	return p
}

// maxPlans bounds the tries for one port, if several subnets of a family are full.
const maxPlans = 8

// Plans returns the addresses to ask Neutron for, in the order of the tries: an address of
// the first subnet of each family, then of the next one, which matters if the first is full.
// chosen are the subnets to choose from, and all those of the network. With neither chosen
// nor requested addresses, Neutron chooses. A requested address takes the place of its
// family. Errors: fault.ErrInvalid.
func Plans(chosen, all []cloud.Subnet, requested []netip.Addr) ([][]cloud.Address, error) {
	from := chosen
	if len(from) == 0 {
		from = all
	}
	var fixed []cloud.Address
	for _, a := range requested {
		i := slices.IndexFunc(from, func(s cloud.Subnet) bool { return s.Prefix.Contains(a) })
		if i < 0 {
			return nil, fmt.Errorf("%w: requested address %s: no subnet of the network has it: must be in %s", fault.ErrInvalid, a, prefixes(from))
		}
		fixed = append(fixed, cloud.Address{Subnet: from[i].ID, Addr: a})
	}
	if len(chosen) == 0 && len(fixed) == 0 {
		return [][]cloud.Address{nil}, nil
	}
	out := [][]cloud.Address{fixed}
	for _, is4 := range []bool{true, false} {
		if slices.ContainsFunc(requested, func(a netip.Addr) bool { return a.Is4() == is4 }) {
			continue
		}
		var next [][]cloud.Address
		for _, s := range from {
			if s.Prefix.Addr().Is4() != is4 {
				continue
			}
			for _, p := range out {
				next = append(next, append(slices.Clip(p), cloud.Address{Subnet: s.ID}))
			}
		}
		if len(next) > 0 {
			out = next[:min(len(next), maxPlans)]
		}
	}
	return out, nil
}

func prefixes(subnets []cloud.Subnet) string {
	var out []string
	for _, s := range subnets {
		out = append(out, s.Prefix.String())
	}
	return fmt.Sprint(out)
}
