package neutron

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Bounds of an interface in the API.
const (
	maxRoutes      = 64
	maxNameservers = 8
)

// wiring is a network with its subnets.
type wiring struct {
	cloud.Network
	subnets []cloud.Subnet
}

// interfaceOf returns the interface for a port with a binding. Errors: driver.ErrUnavailable
// if a subnet of the port is not among those of its network.
func interfaceOf(h holder, p cloud.Port, w wiring, b v1alpha1.Binding) (v1alpha1.Interface, error) {
	i := v1alpha1.Interface{
		Name: h.Interface, Network: h.network, Driver: Name, Default: h.isDefault,
		MAC: strings.ToLower(p.MAC), MTU: int32(min(w.MTU, 65535)), WaitForActive: h.way != Macvlan,
		Binding: b,
	}
	if h.way == Macvlan {
		i.MAC = pairMAC(p.MAC)
	}
	var dns v1alpha1.DNS
	for _, a := range inOrder(p.Addresses) {
		n := slices.IndexFunc(w.subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
		if n < 0 {
			return i, fmt.Errorf("%w: port %s: its subnet %s is not known yet", driver.ErrUnavailable, p.ID, a.Subnet)
		}
		s := w.subnets[n]
		i.Addresses = append(i.Addresses, netip.PrefixFrom(a.Addr, s.Prefix.Bits()).String())
		if s.Gateway.IsValid() {
			addGateway(&i, s.Gateway)
		}
		for _, r := range s.Routes {
			switch route := (v1alpha1.Route{Destination: r.Destination.String(), Gateway: r.NextHop.String()}); {
			case r.Destination.Bits() == 0:
				addGateway(&i, r.NextHop)
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
	return i, nil
}

// inOrder returns addresses with those of IPv4 first, otherwise in their order: Neutron's
// order of two addresses is not always the same.
func inOrder(addresses []cloud.Address) []cloud.Address {
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

// outline returns a port as it will be, for an interface that has to be writable before the
// port exists. An address that Neutron chooses is the first of its subnet.
func outline(addresses []cloud.Address, w wiring) cloud.Port {
	p := cloud.Port{ID: "00000000-0000-4000-8000-000000000000", MAC: "fa:16:3e:00:00:00"}
	if addresses == nil {
		for _, s := range w.subnets {
			addresses = append(addresses, cloud.Address{Subnet: s.ID})
		}
		addresses = addresses[:min(len(addresses), 2)]
	}
	for _, a := range addresses {
		if !a.Addr.IsValid() {
			n := slices.IndexFunc(w.subnets, func(s cloud.Subnet) bool { return s.ID == a.Subnet })
			a.Addr = w.subnets[n].Prefix.Addr()
		}
		p.Addresses = append(p.Addresses, a)
	}
	return p
}
