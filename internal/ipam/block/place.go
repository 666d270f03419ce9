package block

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

// place chooses a block for a take and gives it the operation.
//
// It fails with ErrExhausted, ErrInvalid and ErrStopped.
func (t *txn) place(w *want, o *op) (*entry, error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, ErrStopped
	}
	p := w.pool()
	if p.PerNode() {
		o.node = w.holder.Node
	}
	if err := s.reachable(p, w, o); err != nil {
		return nil, err
	}
	e, sure := s.choose(p, w, o)
	if e == nil {
		return nil, s.exhausted(p, w)
	}
	err := e.apply(o, s.now())
	switch {
	case err == nil:
	case errors.Is(err, ErrInvalid):
		return nil, err
	case sure:
		// It was chosen because it has room for this pool.
		return nil, fmt.Errorf("%w: block %s: %w", ErrUnavailable, e.name, err)
	default:
		// Memory says no. The read says why, or that memory is wrong.
		e.doubtful = true
	}
	t.enqueue(e, o)
	return e, nil
}

// reachable fails with ErrExhausted when a requested address lies in a block that
// nobody has, and that the node may not have now.
func (s *Store) reachable(p *ipam.Pool, w *want, o *op) error {
	if !p.PerNode() || !w.addr.IsValid() || w.has != nil {
		return nil
	}
	name := ipam.BlockName(p.Domain(), ipam.BlockOf(w.addr))
	if e := s.blocks[name]; e != nil && !e.vacant() {
		return nil
	}
	if n := s.blocksOf(p, o.node, w.family); n >= p.MaxBlocksPerNode() {
		return fmt.Errorf("%w: %s lies in block %s, which no node has: node %s has %d %s blocks of pool %s already, and spec.maxBlocksPerNode allows %d",
			ErrExhausted, w.addr, name, o.node, n, w.family, p.Name(), p.MaxBlocksPerNode())
	}
	if !s.open(name, o.node) {
		return fmt.Errorf("%w: %s lies in block %s, which was routed to another node until a moment ago", ErrExhausted, w.addr, name)
	}
	return nil
}

// blocksOf counts the blocks of a family that a node has of a pool, with those that
// are being made.
func (s *Store) blocksOf(p *ipam.Pool, node string, f ipam.Family) int {
	n := 0
	for _, e := range s.byNode[node] {
		if e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == f && !e.vacant() && p.UsableIn(e.prefix) > 0 {
			n++
		}
	}
	return n
}

// choose returns the block that is to serve a take, and whether it is known to
// have room.
func (s *Store) choose(p *ipam.Pool, w *want, o *op) (e *entry, sure bool) {
	switch {
	case w.has != nil && s.blocks[w.has.name] == w.has:
		return w.has, false
	case w.addr.IsValid():
		return s.lookup(p.Domain(), ipam.BlockOf(w.addr), o.node), false
	}
	for {
		for _, early := range []bool{false, true} {
			if e := s.find(p, w, early); e != nil {
				o.early = early
				return s.claim(e, o.node), true
			}
		}
		if len(w.avoid) == 0 {
			return nil, false
		}
		// Better a contended block than none.
		clear(w.avoid)
	}
}

// lookup returns the entry of a block; of one that is not known it assumes
// that it does not exist.
func (s *Store) lookup(domain string, prefix netip.Prefix, node string) *entry {
	if e := s.blocks[ipam.BlockName(domain, prefix)]; e != nil {
		return s.claim(e, node)
	}
	return s.add(domain, prefix, node)
}

// claim makes a block that nobody has the block of a node, or shared.
func (s *Store) claim(e *entry, node string) *entry {
	if e.vacant() && e.node != node {
		s.route(e, node)
	}
	return e
}

// route makes a block that is not there the block of a node, or shared.
func (s *Store) route(e *entry, node string) {
	s.own(e, node)
	e.base = s.fresh(e.prefix, node)
	e.rebuild(s.now())
}

// vacant says that the block is not known to exist, and nothing is taken from
// it now.
func (e *entry) vacant() bool {
	return e.absent() && len(e.lost) == 0
}

// absent says the same of a block of which something may be lost.
func (e *entry) absent() bool {
	takes := func(o *op) bool { return o.kind == opTake }
	return e.obj == nil && e.base.Used() == 0 && len(e.doubts) == 0 &&
		!slices.ContainsFunc(e.flight, takes) && !slices.ContainsFunc(e.queue, takes)
}

// find returns a block with room for the pool, which may not exist yet. It returns
// nil when every candidate is known to have nothing.
func (s *Store) find(p *ipam.Pool, w *want, early bool) *entry {
	now := s.now()
	if p.PerNode() {
		return s.findOwn(p, w, now, early)
	}
	return s.findShared(p, w, now, early)
}

// findShared serves from the block that served the node last as long as it has
// any, then from the next; with the order Lowest always from the lowest.
func (s *Store) findShared(p *ipam.Pool, w *want, now ipam.Moment, early bool) *entry {
	suits := func(e *entry) bool {
		if e == nil || e.foreign || w.avoid[e.name] {
			return false
		}
		return e.vacant() || e.node == "" && e.next.Eligible(p, now, early) > 0
	}
	k := place{p.Name(), w.holder.Node, w.family}
	lowest := p.Order() == ipam.Lowest
	if e := s.blocks[s.last[k]]; !lowest && suits(e) && p.HandsOut(e.prefix) {
		return e
	}
	for prefix := range p.Candidates(w.family, w.holder.Node) {
		name := ipam.BlockName(p.Domain(), prefix)
		e := s.blocks[name]
		if e == nil && !w.avoid[name] {
			e = s.add(p.Domain(), prefix, "")
		}
		if suits(e) {
			if !lowest {
				s.remember(k, name)
			}
			return e
		}
	}
	return nil
}

// findOwn serves from the blocks of the node first, then from the next one
// that nobody has, if the node may have more.
func (s *Store) findOwn(p *ipam.Pool, w *want, now ipam.Moment, early bool) *entry {
	own := s.byNode[w.holder.Node]
	for _, name := range slices.Sorted(maps.Keys(own)) {
		e := own[name]
		if e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == w.family && !e.foreign &&
			!w.avoid[name] && e.next.Eligible(p, now, early) > 0 {
			return e
		}
	}
	if s.blocksOf(p, w.holder.Node, w.family) >= p.MaxBlocksPerNode() {
		return nil
	}
	for prefix := range p.Candidates(w.family, w.holder.Node) {
		name := ipam.BlockName(p.Domain(), prefix)
		switch e := s.blocks[name]; {
		case w.avoid[name] || !s.open(name, w.holder.Node):
		case e == nil:
			return s.add(p.Domain(), prefix, w.holder.Node)
		case e.vacant():
			return e
		}
	}
	return nil
}

func (s *Store) remember(k place, name string) {
	if len(s.last) >= maxPlaces {
		clear(s.last)
	}
	s.last[k] = name
}

// exhausted says that nothing is left, with the counts: those after what is
// under way, which took the last.
func (s *Store) exhausted(p *ipam.Pool, w *want) error {
	where, why := "", ""
	counts := s.counts(p, expected, w.family)
	if p.PerNode() {
		where = " for node " + w.holder.Node
		switch n := s.blocksOf(p, w.holder.Node, w.family); {
		case n >= p.MaxBlocksPerNode():
			why = fmt.Sprintf("; the node has %d blocks of it, and spec.maxBlocksPerNode allows %d", n, p.MaxBlocksPerNode())
		case counts.Free > 0:
			why = ", the free ones in blocks of other nodes"
		}
	}
	return fmt.Errorf("%w: pool %s has no %s address left%s: %s%s", ErrExhausted, p.Name(), w.family, where, counts, why)
}

// noteCooldown remembers how long blocks of a domain must be left alone.
func (s *Store) noteCooldown(p *ipam.Pool) {
	s.rest[p.Domain()] = max(s.rest[p.Domain()], p.Cooldown())
}

func (s *Store) cooldown(domain string) time.Duration {
	return max(s.rest[domain], ipam.DefaultCooldown)
}
