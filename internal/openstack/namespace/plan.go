package namespace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// maxSubnets bounds the subnets of a network, as their list in the record is bounded.
const maxSubnets = 256

// ownSubnets returns those of the subnets of a network that Fairlead made, in the order of
// their families and CIDRs. Two of the same name are there if two leaders made it at once:
// both serve.
func ownSubnets(network string, all []cloud.Subnet) []cloud.Subnet {
	own := slices.DeleteFunc(slices.Clone(all), func(s cloud.Subnet) bool { return !isSubnetName(network, s.Name) })
	slices.SortFunc(own, func(a, b cloud.Subnet) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), strings.Compare(a.ID, b.ID))
	})
	return own
}

// missing returns the subnets to create: the first one of each family that a pool has, and
// another one of each family without room. used is the number of addresses of ports by
// subnet, without those of gateways; with nil, every subnet has room. Errors:
// cloud.ErrInvalid (two pools of one family), cloud.ErrLimit.
func missing(network string, pools []cloud.SubnetPool, own []cloud.Subnet, used map[string]uint64) ([]cloud.SubnetSpec, error) {
	var out []cloud.SubnetSpec
	for i, p := range pools {
		if slices.ContainsFunc(pools[:i], func(other cloud.SubnetPool) bool { return other.IPv6 == p.IPv6 }) {
			return nil, fmt.Errorf("%w: subnet pools %q and %q are both of %s: name one of each family", cloud.ErrInvalid, pools[0].Name, p.Name, family(p.IPv6))
		}
		if hasRoom(own, p.IPv6, used) {
			continue
		}
		if len(own)+len(out) >= maxSubnets {
			return nil, fmt.Errorf("%w: the network has %d subnets, and at most %d: use a subnet pool with a shorter default prefix length", cloud.ErrLimit, len(own), maxSubnets)
		}
		out = append(out, cloud.SubnetSpec{Name: freeName(network, p.IPv6, own), IPv6: p.IPv6, Pool: p.ID})
	}
	return out, nil
}

// hasRoom reports whether a subnet of a family has an address left.
func hasRoom(own []cloud.Subnet, ipv6 bool, used map[string]uint64) bool {
	return slices.ContainsFunc(own, func(s cloud.Subnet) bool {
		return s.Prefix.Addr().Is6() == ipv6 && (used == nil || used[s.ID] < s.Size)
	})
}

// freeName returns the first name that no subnet of a family has.
func freeName(network string, ipv6 bool, own []cloud.Subnet) string {
	for n := 0; ; n++ {
		name := subnetName(network, ipv6, n)
		if !slices.ContainsFunc(own, func(s cloud.Subnet) bool { return s.Name == name }) {
			return name
		}
	}
}

// usedBy counts the addresses of ports by subnet, without those of gateways, which no port of
// a pod can have.
func usedBy(ports []cloud.Port, own []cloud.Subnet) map[string]uint64 {
	used := map[string]uint64{}
	for _, p := range ports {
		for _, a := range p.Addresses {
			if !slices.ContainsFunc(own, func(s cloud.Subnet) bool { return s.ID == a.Subnet && s.Gateway == a.Addr }) {
				used[a.Subnet]++
			}
		}
	}
	return used
}

// inTheWay returns the ports that keep a network: all but those of Neutron itself, as of
// routers and of DHCP.
func inTheWay(ports []cloud.Port) []cloud.Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p cloud.Port) bool { return strings.HasPrefix(p.DeviceOwner, "network:") })
}

// recorded returns subnets as they are in a record.
func recorded(own []cloud.Subnet) (subnets []v1alpha1.NamespaceSubnet, summary string) {
	var cidrs []string
	for _, s := range own {
		subnets = append(subnets, v1alpha1.NamespaceSubnet{ID: s.ID, CIDR: s.Prefix.String()})
		cidrs = append(cidrs, s.Prefix.String())
	}
	return subnets, v1alpha1.OneLine(cidrs, maxSummary)
}

// maxSummary is the length of the summary of a record.
const maxSummary = 256
