package hostnet

import (
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// routedOf returns the prefixes of a node's blocks to which the cloud's router has routes.
func routedOf(nn *v1alpha1.NodeNetwork) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range nn.Spec.Fabric.InEffect() {
		if p, err := parseBlock(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// routesTo reports whether the cloud's router carries packets between the pods of this node
// and those of another, for the family of an address. Both nodes come to the same result.
func (p *planner) routesTo(nn *v1alpha1.NodeNetwork, addresses []netip.Prefix, of netip.Addr) bool {
	_, has := ofFamily(addresses, of)
	_, have := ofFamily(p.mine, of)
	_, mine := ofFamily(p.routed, of)
	_, theirs := ofFamily(routedOf(nn), of)
	return has && have && mine && theirs && p.gateway(of).IsValid()
}

// routedBy returns the gateway by which a block of another node is reached without the
// tunnel, and whether there is one.
func (p *planner) routedBy(nn *v1alpha1.NodeNetwork, addresses []netip.Prefix, block netip.Prefix) (netip.Addr, bool) {
	covers := func(r netip.Prefix) bool { return r.Contains(block.Addr()) && r.Bits() <= block.Bits() }
	return p.gateway(block.Addr()), p.routesTo(nn, addresses, block.Addr()) && slices.ContainsFunc(routedOf(nn), covers)
}

// gateway returns the default gateway of the uplink for a family, an invalid address if
// there is none.
func (p *planner) gateway(of netip.Addr) netip.Addr {
	for _, g := range p.up.Gateways {
		if g.Is4() == of.Is4() {
			return g
		}
	}
	return netip.Addr{}
}
