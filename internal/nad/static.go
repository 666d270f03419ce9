package nad

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Static are the addresses of an ipam section of type static. Every interface of the
// network has them. They are not recorded, and nothing keeps them unique.
type Static struct {
	// Addresses with the prefix length of the link; empty if each pod requests its own.
	Addresses []netip.Prefix
	// Gateways of the default routes, at most one per family. The gateway of an address is
	// among them only if the configuration has a default route.
	Gateways []netip.Addr
	// Routes in addition to the default routes.
	Routes []v1alpha1.Route
	// DNS is nil if nothing is set.
	DNS *v1alpha1.DNS
}

// static is a section as it was read.
type static struct {
	addresses []address
	routes    []route
	dns       *v1alpha1.DNS
	// toGateways adds a default route to the gateway of each family.
	toGateways bool
}

// address has a zero gateway if it has none.
type address struct {
	prefix  netip.Prefix
	gateway netip.Addr
}

type addressOption struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

// addresses parses the addresses of static.
func (r *reader) addresses(options []addressOption) []address {
	if len(options) > maxAddresses {
		r.bad("ipam.addresses", fmt.Sprint(len(options))+" elements", "must have at most "+fmt.Sprint(maxAddresses))
		return nil
	}
	var out []address
	for i, o := range options {
		field := fmt.Sprintf("ipam.addresses[%d].", i)
		p, err := netip.ParsePrefix(o.Address)
		a := p.Addr()
		switch {
		case err != nil || a.Is4In6():
			r.bad(field+"address", o.Address, "must be an address with the prefix length of its link, as 10.0.0.5/24")
			continue
		case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
			r.bad(field+"address", o.Address, "must be an address that an interface can have, as 10.0.0.5/24")
		case slices.ContainsFunc(out, func(other address) bool { return other.prefix.Addr() == a }):
			r.bad(field+"address", o.Address, "must be listed once")
		}
		one := address{prefix: p}
		if o.Gateway != "" {
			one.gateway = r.gateway(field+"gateway", o.Gateway, a)
		}
		out = append(out, one)
	}
	return out
}

// ownGateways gives each address without a gateway the first address of its network, and
// returns each gateway with the prefix length of its network.
func (r *reader) ownGateways() []netip.Prefix {
	var out []netip.Prefix
	for i := range r.static.addresses {
		a := &r.static.addresses[i]
		if !a.gateway.IsValid() {
			a.gateway = a.prefix.Masked().Addr().Next()
		}
		if a.gateway == a.prefix.Addr() || !a.prefix.Contains(a.gateway) {
			r.bad(fmt.Sprintf("ipam.addresses[%d].gateway", i), a.gateway.String(), "must be another address in "+a.prefix.Masked().String()+", because it is put on the bridge")
			continue
		}
		if p := netip.PrefixFrom(a.gateway, a.prefix.Bits()); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// gatewayOf returns the gateway of the first address of a family that has one.
func (s *static) gatewayOf(is4 bool) netip.Addr {
	for _, a := range s.addresses {
		if a.gateway.IsValid() && a.gateway.Is4() == is4 {
			return a.gateway
		}
	}
	return netip.Addr{}
}

// resolve sets the static addresses of a network. A route without a gateway goes through
// the gateway of its family, as with the reference plugins.
func (r *reader) resolve(n *Network) {
	s := r.static
	if s == nil {
		return
	}
	out := &Static{DNS: s.dns}
	for _, a := range s.addresses {
		out.Addresses = append(out.Addresses, a.prefix)
	}
	has := func(is4 bool) bool {
		return slices.ContainsFunc(out.Gateways, func(g netip.Addr) bool { return g.Is4() == is4 })
	}
	for _, route := range s.routes {
		is4 := route.destination.Addr().Is4()
		if !route.gateway.IsValid() {
			route.gateway = s.gatewayOf(is4)
		}
		switch {
		case route.destination.Bits() > 0 || !route.gateway.IsValid():
			out.Routes = append(out.Routes, route.inAPI())
		case has(is4):
			r.bad(route.field+"dst", route.destination.String(), "must be the only default route of its family")
		default:
			out.Gateways = append(out.Gateways, route.gateway)
		}
	}
	for _, is4 := range []bool{true, false} {
		if g := s.gatewayOf(is4); s.toGateways && g.IsValid() && !has(is4) {
			out.Gateways = append(out.Gateways, g)
		}
	}
	n.Static = out
}
