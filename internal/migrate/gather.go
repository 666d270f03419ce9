package migrate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// claim is the entry of one object of whereabouts for an address.
type claim struct {
	Allocation
	// where names the object.
	where string
	// reserved is true for an OverlappingRangeIPReservation.
	reserved bool
}

// served is a network with its pools parsed.
type served struct {
	Network
	pools []*ipam.Pool
}

func (n *served) poolOf(a netip.Addr) *ipam.Pool {
	for _, p := range n.pools {
		if p.Covers(a) {
			return p
		}
	}
	return nil
}

// covers reports whether whereabouts gives the address to pods of the network.
func (n *served) covers(a netip.Addr) bool {
	return slices.ContainsFunc(n.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }) || n.poolOf(a) != nil
}

// planner holds the state, indexed for Make.
type planner struct {
	State
	drop     bool
	networks []*served
	byName   map[string]*served
	claims   map[Address][]claim
	uses     map[Address][]use
	pods     map[string]*corev1.Pod
	// overlapping is true for domains in which every address has a reservation.
	overlapping map[string]bool
	// links are the ranges of networks and of whereabouts' pools, by domain.
	links  map[string][]netip.Prefix
	blocks map[string]*ipam.Block
	// records by pod.
	records map[pod.Key]*v1alpha1.PodAttachment
	plan    *Plan
	held    map[Address]bool
}

func (p *planner) find(kind Kind, outcome Outcome, at Address, format string, args ...any) {
	p.note(kind, outcome, at.Domain, at.Addr.String(), format, args...)
}

func (p *planner) note(kind Kind, outcome Outcome, domain, address, format string, args ...any) {
	p.plan.Findings = append(p.plan.Findings, Finding{
		Kind: kind, Outcome: outcome, Domain: domain, Address: address, Text: fmt.Sprintf(format, args...),
	})
}

func newPlanner(s State, drop bool) (*planner, error) {
	p := &planner{
		State: s, drop: drop,
		byName:      map[string]*served{},
		claims:      map[Address][]claim{},
		uses:        map[Address][]use{},
		pods:        map[string]*corev1.Pod{},
		overlapping: map[string]bool{},
		links:       map[string][]netip.Prefix{},
		blocks:      map[string]*ipam.Block{},
		records:     map[pod.Key]*v1alpha1.PodAttachment{},
		plan:        &Plan{Findings: []Finding{}},
		held:        map[Address]bool{},
	}
	for _, n := range s.Networks {
		out := &served{Network: n}
		for i := range n.Pools {
			parsed, err := block.PoolOf(&n.Pools[i])
			if err != nil {
				return nil, fmt.Errorf("network %s: IPPool %s: %w", n.Name, n.Pools[i].Name, err)
			}
			out.pools = append(out.pools, parsed)
		}
		p.networks, p.byName[n.Name] = append(p.networks, out), out
		p.overlapping[n.Domain] = p.overlapping[n.Domain] || n.Overlapping
		p.links[n.Domain] = append(p.links[n.Domain], n.Ranges...)
	}
	for i := range s.Blocks {
		b, err := readBlock(&s.Blocks[i])
		if err != nil {
			return nil, err
		}
		p.blocks[s.Blocks[i].Name] = b
	}
	for i := range s.Records {
		p.records[pod.Of(&s.Records[i])] = &s.Records[i]
	}
	for i := range s.Pods {
		p.pods[podRef(&s.Pods[i])] = &s.Pods[i]
	}
	p.gatherAllocations()
	p.gatherReservations()
	p.gatherUses()
	return p, nil
}

func readBlock(o *v1alpha1.IPBlock) (*ipam.Block, error) {
	b, err := block.Decode(o)
	if err != nil {
		return nil, fmt.Errorf("IPBlock %s: %w", o.Name, err)
	}
	return b, nil
}

// gatherAllocations reads the entries of whereabouts' pools.
func (p *planner) gatherAllocations() {
	for _, pool := range p.Pools {
		space, known := spaceOf(pool, p.Slices)
		domain := p.DomainOf(space)
		r, err := netip.ParsePrefix(pool.Range)
		if err != nil || !known {
			for _, offset := range slices.Sorted(maps.Keys(pool.Allocations)) {
				p.note(Undecodable, Reported, domain, pool.Name, "%s for %s: its address cannot be derived from the pool's range %q and name",
					pool.describe(offset), pool.Allocations[offset].PodRef, pool.Range)
			}
			continue
		}
		p.links[domain] = append(p.links[domain], r.Masked())
		for _, offset := range slices.Sorted(maps.Keys(pool.Allocations)) {
			entry := pool.Allocations[offset]
			a, ok := atOffset(r.Addr(), offset)
			if !ok {
				p.note(Undecodable, Reported, domain, pool.Range, "%s for %s names no address", pool.describe(offset), entry.PodRef)
				continue
			}
			at := Address{domain, a}
			if !r.Contains(a) {
				p.find(OutOfRange, p.orphan(), at, "%s for %s lies outside of %s", pool.describe(offset), entry.PodRef, pool.Range)
			}
			p.claims[at] = append(p.claims[at], claim{Allocation: entry, where: pool.describe(offset)})
		}
	}
}

// gatherReservations reads whereabouts' reservations. An ambiguous name is read as the
// only reading that lies in a known range of its network. If several do, or none, all
// these readings are withheld.
func (p *planner) gatherReservations() {
	for _, r := range p.Reservations {
		all := readings(r.Name)
		likely := slices.DeleteFunc(slices.Clone(all), func(at place) bool {
			return !slices.ContainsFunc(p.links[p.DomainOf(at.space)], func(l netip.Prefix) bool { return l.Contains(at.addr) })
		})
		switch {
		case len(all) == 0:
			p.note(Undecodable, Reported, "", r.Name, "%s for %s names no address", r.describe(), r.PodRef)
			continue
		case len(likely) > 0:
			all = likely
		}
		for _, at := range all {
			where := Address{p.DomainOf(at.space), at.addr}
			if len(all) > 1 {
				p.find(Ambiguous, Withheld, where, "%s for %s can be read as several addresses", r.describe(), r.PodRef)
				p.hold(where)
				continue
			}
			p.claims[where] = append(p.claims[where], claim{
				Allocation: Allocation{PodRef: r.PodRef, Interface: r.Interface}, where: r.describe(), reserved: true,
			})
		}
	}
}

// gatherUses collects the addresses that running pods show. On a network of whereabouts
// it takes the addresses that whereabouts may have given, on others only those that
// whereabouts has recorded for this pod.
func (p *planner) gatherUses() {
	domains := map[netip.Addr][]string{}
	for at := range p.claims {
		domains[at.Addr] = append(domains[at.Addr], at.Domain)
	}
	for i := range p.Pods {
		from := &p.Pods[i]
		if !pod.Holds(from) {
			continue
		}
		shown(from, func(a netip.Addr, iface, network string) {
			if n := p.byName[network]; n != nil {
				at := Address{n.Domain, a}
				if len(p.claims[at]) > 0 || n.covers(a) {
					p.uses[at] = append(p.uses[at], use{pod: from, iface: iface, network: network})
				}
				return
			}
			for _, domain := range domains[a] {
				if at := (Address{domain, a}); p.claimedBy(at, from, iface) {
					p.uses[at] = append(p.uses[at], use{pod: from, iface: iface, network: network})
				}
			}
		})
	}
}

// claimedBy reports whether an address is recorded for an interface of a pod; an empty
// name matches every interface.
func (p *planner) claimedBy(at Address, from *corev1.Pod, iface string) bool {
	return slices.ContainsFunc(p.claims[at], func(c claim) bool {
		return c.PodRef == podRef(from) && (iface == "" || c.Interface == "" || c.Interface == iface)
	})
}
