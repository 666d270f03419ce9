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

// place chooses a block for a take and enqueues the operation there.
//
// Errors: ErrExhausted, ErrInvalid, ErrStopped, and ErrUnavailable if the chosen block
// has no room after all.
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
		// choose has found room in this block: the memory is inconsistent.
		return nil, fmt.Errorf("%w: block %s: %w", ErrUnavailable, e.name, err)
	default:
		// The known state has no room. The read either confirms this, with the reason,
		// or shows that the state was outdated.
		e.doubtful = true
	}
	t.enqueue(e, o)
	return e, nil
}

// reachable checks a requested address of a PerNode pool. It fails with ErrExhausted if
// the address lies in a vacant block that the node may not get now.
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
	if !s.mayRoute(name, o.node) {
		return fmt.Errorf("%w: %s lies in block %s, which was routed to another node less than %s ago: try again later", ErrExhausted, w.addr, name, rerouteDelay)
	}
	return nil
}

// blocksOf counts the blocks that a node has of a pool in one family, including those
// under construction.
func (s *Store) blocksOf(p *ipam.Pool, node string, f ipam.Family) int {
	n := 0
	for _, e := range s.byNode[node] {
		if e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == f && !e.vacant() && p.UsableIn(e.prefix) > 0 {
			n++
		}
	}
	return n
}

// choose returns the block for a take, and whether the block is known to have room.
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
		// A contended block is better than none.
		clear(w.avoid)
	}
}

// lookup returns the entry of a block. It assumes that an unknown block does not exist.
func (s *Store) lookup(domain string, prefix netip.Prefix, node string) *entry {
	if e := s.blocks[ipam.BlockName(domain, prefix)]; e != nil {
		return s.claim(e, node)
	}
	return s.add(domain, prefix, node)
}

// claim routes a vacant block to a node; to none, for a shared block, if node is empty.
func (s *Store) claim(e *entry, node string) *entry {
	if e.vacant() && e.node != node {
		s.route(e, node)
	}
	return e
}

// route routes a block that does not exist yet to a node; to none if node is empty.
func (s *Store) route(e *entry, node string) {
	s.setNode(e, node)
	e.base = s.fresh(e.prefix, node)
	e.rebuild(s.now())
}

// vacant reports whether the block is not known to exist, and nothing is being taken from
// it.
func (e *entry) vacant() bool {
	return e.obj == nil && e.base.Used() == 0 && len(e.doubts) == 0 &&
		!slices.ContainsFunc(e.flight, (*op).takes) && !slices.ContainsFunc(e.queue, (*op).takes)
}

// find returns a block with room for the pool, which may not exist yet. It returns nil
// if every candidate is known to be full.
func (s *Store) find(p *ipam.Pool, w *want, early bool) *entry {
	now := s.now()
	if p.PerNode() {
		return s.findOwn(p, w, now, early)
	}
	return s.findShared(p, w, now, early)
}

// findShared returns the block that last served the node as long as it has room, then
// the next candidate. With order Lowest it always returns the lowest block with room.
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

// findOwn returns a block of the node with room. If there is none and the node may have
// more blocks, it returns the next vacant candidate.
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
		case w.avoid[name] || !s.mayRoute(name, w.holder.Node):
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

// exhausted returns an ErrExhausted with counts. The counts include the operations
// under way, which took the last addresses.
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

// noteCooldown records the longest cooldown of a domain: blocks of the domain must not
// be deleted earlier.
func (s *Store) noteCooldown(p *ipam.Pool) {
	s.cooldowns[p.Domain()] = max(s.cooldowns[p.Domain()], p.Cooldown())
}

func (s *Store) cooldown(domain string) time.Duration {
	return max(s.cooldowns[domain], ipam.DefaultCooldown)
}

// Serves predicts whether Take would succeed, and returns the error that Take would
// return; nil if the store knows no obstacle. It reads memory only and takes nothing.
//
// Errors: ErrInvalid, ErrExhausted, ErrConflict.
func (s *Store) Serves(p *ipam.Pool, r Request) error {
	wants, err := parse(p, r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wants {
		w := &wants[i]
		now := w.pool()
		s.noteCooldown(now)
		if err := s.adopt(now, w); err != nil {
			return err
		}
		if err := s.wouldServe(now, w); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) wouldServe(p *ipam.Pool, w *want) error {
	if w.has != nil || w.join != (ipam.Holder{}) {
		return nil
	}
	if !w.addr.IsValid() {
		if !s.room(p, w) {
			return s.exhausted(p, w)
		}
		return nil
	}
	e := s.blocks[ipam.BlockName(p.Domain(), ipam.BlockOf(w.addr))]
	if e == nil {
		return nil
	}
	if err := e.next.Clone().TakeHeld(p, w.holder, w.addr, w.claim, s.now()); err != nil {
		return refusedTake(err)
	}
	return nil
}

// room reports whether a block has an address for the want, or could be created for it.
func (s *Store) room(p *ipam.Pool, w *want) bool {
	now, node := s.now(), ""
	if p.PerNode() {
		node = w.holder.Node
	}
	for prefix := range p.Candidates(w.family, w.holder.Node) {
		name := ipam.BlockName(p.Domain(), prefix)
		e := s.blocks[name]
		if e == nil || e.vacant() {
			if p.PerNode() && (s.blocksOf(p, node, w.family) >= p.MaxBlocksPerNode() || !s.mayRoute(name, node)) {
				continue
			}
			return true
		}
		if !e.foreign && e.node == node && e.next.Eligible(p, now, true) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(s.claims[w.claim], func(l Lease) bool { return l.Holder == (ipam.Holder{}) && l.Domain == p.Domain() && p.Allows(l.Addr) })
}
