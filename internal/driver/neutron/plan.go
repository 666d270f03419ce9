package neutron

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// maxPlans bounds the tries for one port, if several subnets of a family are full.
const maxPlans = 8

// plans returns the addresses to ask Neutron for, in the order of the tries: an address of
// the first subnet of each family, then of the next one, which matters if the first is full.
// chosen are the subnets to choose from, and all those of the network. With neither chosen
// nor requested addresses, Neutron chooses. A requested address takes the place of its
// family. Errors: driver.ErrInvalid.
func plans(chosen, all []cloud.Subnet, requested []netip.Addr) ([][]cloud.Address, error) {
	from := chosen
	if len(from) == 0 {
		from = all
	}
	var fixed []cloud.Address
	for _, a := range requested {
		i := slices.IndexFunc(from, func(s cloud.Subnet) bool { return s.Prefix.Contains(a) })
		if i < 0 {
			return nil, fmt.Errorf("%w: requested address %s: no subnet of the network has it: must be in %s", driver.ErrInvalid, a, prefixes(from))
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
