package fabric

import (
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// maxPairs is the number of allowed address pairs of a port that Neutron allows by default
// (max_allowed_address_pair).
const maxPairs = 10

// portPlan is the change of a port.
type portPlan struct {
	// pairs and group are those of this cluster that the port has afterwards.
	pairs []netip.Prefix
	group string
	// before has to be recorded before the change: pairs, and what the change removes.
	before []netip.Prefix
	change cloud.PortChange
	// added and removed count the entries that change.
	added, removed int
	// coarse is true if the preferred pairs do not fit.
	coarse bool
}

func (p portPlan) changes() bool { return p.change.Pairs != nil || p.change.Groups != nil }

// planPort plans the pairs and the group of a port. wants are sets of prefixes, the
// preferred one first; none removes all. ours is the record: only the pairs and the group
// in it are removed. A pair that the port has already, and that is not in the record, is
// another's: it serves as well and stays.
func planPort(port cloud.Port, ours v1alpha1.Fabric, wants [][]netip.Prefix, group string) portPlan {
	recorded := parse(ours.Pairs)
	var others, held []netip.Prefix
	var kept []cloud.Pair
	for _, pair := range port.Pairs {
		own := pair.MAC == "" || pair.MAC == port.MAC
		switch {
		case own && slices.Contains(recorded, pair.Prefix):
			held = append(held, pair.Prefix)
			continue
		case own:
			others = append(others, pair.Prefix)
		}
		kept = append(kept, pair)
	}
	want, coarse := fitting(wants, others, maxPairs-len(kept))
	plan := portPlan{coarse: coarse, pairs: []netip.Prefix{}}
	for _, p := range want {
		if slices.Contains(others, p) {
			continue
		}
		plan.pairs = append(plan.pairs, p)
		kept = append(kept, cloud.Pair{Prefix: p})
		if !slices.Contains(held, p) {
			plan.added++
		}
	}
	plan.before = slices.Clone(plan.pairs)
	for _, p := range held {
		if !slices.Contains(plan.pairs, p) {
			plan.removed++
			plan.before = append(plan.before, p)
		}
	}
	if plan.added+plan.removed > 0 {
		plan.change.Pairs = &kept
	}
	plan.planGroup(port, ours.Group, group)
	return plan
}

// planGroup plans the group that is added to a port, empty for none.
func (p *portPlan) planGroup(port cloud.Port, ours, want string) {
	groups := slices.Clone(port.Groups)
	if ours != "" && ours != want && slices.Contains(groups, ours) {
		groups = slices.DeleteFunc(groups, func(id string) bool { return id == ours })
		p.removed++
	}
	has := slices.Contains(groups, want)
	switch {
	case want == "":
	case has && ours == want:
		p.group = want
	case !has:
		groups, p.group = append(groups, want), want
		p.added++
	}
	if !slices.Equal(groups, port.Groups) {
		p.change.Groups = &groups
	}
}

// fitting returns the first set that fits into the free entries of a port, otherwise the
// last one. coarse is true if it is not the first.
func fitting(wants [][]netip.Prefix, others []netip.Prefix, free int) (set []netip.Prefix, coarse bool) {
	for i, w := range wants {
		fresh := 0
		for _, p := range w {
			if !slices.Contains(others, p) {
				fresh++
			}
		}
		if fresh <= free || i == len(wants)-1 {
			return w, i > 0
		}
	}
	return nil, false
}

// planRules plans the rules of a group that let packets of pods in. mark is the
// description of the rules of this cluster; only rules that have it are removed.
func planRules(have []cloud.Rule, pods []netip.Prefix, mark string) (add []cloud.Rule, remove []string) {
	has := map[netip.Prefix]bool{}
	for _, r := range have {
		all := !r.Egress && r.Protocol == "" && r.PortMin == 0 && r.PortMax == 0 && r.RemoteGroup == "" && r.Remote.IsValid()
		switch {
		case all && slices.Contains(pods, r.Remote):
			has[r.Remote] = true
		case r.Description == mark:
			remove = append(remove, r.ID)
		}
	}
	for _, p := range pods {
		if !has[p] {
			add = append(add, cloud.Rule{Description: mark, IPv6: p.Addr().Is6(), Remote: p})
		}
	}
	return add, remove
}

// planRoutes plans the routes of a router to the blocks of one node. ours is the record.
func planRoutes(have, want []cloud.Route, ours []v1alpha1.FabricRoute) (add, remove []cloud.Route, record, before []v1alpha1.FabricRoute) {
	for _, r := range want {
		text := routeText(r)
		mine, there := slices.Contains(ours, text), slices.Contains(have, r)
		if !there {
			add = append(add, r)
		}
		if mine || !there {
			record = append(record, text)
		}
	}
	before = slices.Clone(record)
	for _, text := range ours {
		r, ok := parseRoute(text)
		if !ok || slices.Contains(want, r) || !slices.Contains(have, r) {
			continue
		}
		remove, before = append(remove, r), append(before, text)
	}
	return add, remove, record, before
}

// stillRouted returns the recorded destinations to which wanted routes lead.
func stillRouted(recorded []string, want []cloud.Route) []string {
	var out []string
	for _, p := range parse(recorded) {
		leads := func(r cloud.Route) bool { return r.Destination.Contains(p.Addr()) && r.Destination.Bits() <= p.Bits() }
		if slices.ContainsFunc(want, leads) {
			out = append(out, p.String())
		}
	}
	return out
}

// destinations returns the destinations of routes as they are recorded, nil if there are
// none.
func destinations(all []cloud.Route) []string {
	var out []string
	for _, r := range all {
		out = append(out, r.Destination.String())
	}
	return out
}

func routeText(r cloud.Route) v1alpha1.FabricRoute {
	return v1alpha1.FabricRoute{Destination: r.Destination.String(), NextHop: r.NextHop.String()}
}

func parseRoute(r v1alpha1.FabricRoute) (cloud.Route, bool) {
	p, err := netip.ParsePrefix(r.Destination)
	if err != nil {
		return cloud.Route{}, false
	}
	a, err := netip.ParseAddr(r.NextHop)
	return cloud.Route{Destination: p, NextHop: a}, err == nil
}
