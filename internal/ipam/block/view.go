package block

import (
	"iter"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/ipam"
)

// All yields every known lease of a holder, in no order. It reads memory only. The
// store may be used during the iteration.
func (s *Store) All() iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		s.mu.Lock()
		all := make([]Lease, 0, len(s.known.leases))
		for _, l := range s.known.leases {
			all = append(all, l...)
		}
		s.mu.Unlock()
		for _, l := range all {
			if !yield(l) {
				return
			}
		}
	}
}

// Behind reports whether the store knows an outdated state: the informer has shown a
// newer state of a block, which the store adopts only after the outcome of a write is
// known.
func (s *Store) Behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known.pending) > 0
}

// Counts returns the counts of some families of a pool; without families, of all that
// it has. It reads memory only.
func (s *Store) Counts(p *ipam.Pool, families ...ipam.Family) ipam.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.noteCooldown(p)
	if len(families) == 0 {
		families = p.Families()
	}
	return s.known.counts(p, false, families...)
}

// NodeBlocks returns the blocks that are routed to a node, sorted.
func (s *Store) NodeBlocks(node string) []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []netip.Prefix
	for _, e := range s.known.byNode[node] {
		if e.obj != nil || e.base.Used() > 0 {
			out = append(out, e.prefix)
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(out)
}

// UsedBy returns how many addresses of a pool's ranges count for a namespace: those of
// its pods and those held for its claims. Of IPv4 and IPv6 it returns the larger count.
// One held address per family of the claim own does not count, since a take with this
// claim gets it. own may be empty. It reads memory only.
func (s *Store) UsedBy(namespace string, p *ipam.Pool, own string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, kept := map[ipam.Family]int{}, map[ipam.Family]int{}
	for a, claim := range s.known.tenants[tenant{namespace, p.Domain()}] {
		if !p.Covers(a) {
			continue
		}
		used[ipam.FamilyOf(a)]++
		if claim != "" && claim == own {
			kept[ipam.FamilyOf(a)] = 1
		}
	}
	return max(used[ipam.IPv4]-kept[ipam.IPv4], used[ipam.IPv6]-kept[ipam.IPv6])
}

// Taking reports whether a take under way has chosen an address of the reservation: it
// chose before the reservation was known, and the write is not finished.
func (s *Store) Taking(r *ipam.Reservation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	takes := func(o *op) bool { return o.kind == opTake && o.changed && r.Contains(o.got) }
	for _, e := range s.known.blocks {
		if e.domain == r.Domain() && (slices.ContainsFunc(e.flight, takes) || slices.ContainsFunc(e.queue, takes)) {
			return true
		}
	}
	return false
}

// Within returns the leases of reserved addresses, sorted by address. It reads memory
// only.
func (s *Store) Within(r *ipam.Reservation) []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Lease
	for _, e := range s.known.blocks {
		if e.domain != r.Domain() || !r.Touches(e.prefix) {
			continue
		}
		for slot := range e.base.Slots() {
			if slot.State == ipam.Taken && r.Contains(slot.Addr) {
				out = append(out, s.known.lease(e, slot))
			}
		}
	}
	slices.SortFunc(out, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return out
}
