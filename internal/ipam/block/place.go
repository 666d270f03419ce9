package block

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

// place identifies the takes that prefer the same block: of one pool, on one node, in
// one family.
type place struct {
	pool, node string
	family     ipam.Family
}

// maxPlaces limits the size of Store.last. Forgetting a place costs only a preference.
const maxPlaces = 1 << 14

// placement chooses the block of a take. Store.mu guards it.
type placement struct {
	known *known
	// last is the block that last served a place.
	last map[place]string
}

// place chooses a block for a take and enqueues the operation there.
//
// Errors: fault.ErrExhausted, fault.ErrInvalid, ErrStopped, and fault.ErrUnavailable if the chosen block
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
	if err := s.placement.reachable(p, w, o); err != nil {
		return nil, err
	}
	e, sure := s.placement.choose(p, w, o)
	if e == nil {
		return nil, s.placement.exhausted(p, w)
	}
	err := e.apply(o, s.known.now())
	switch {
	case err == nil:
	case errors.Is(err, fault.ErrInvalid):
		return nil, err
	case sure:
		// choose has found room in this block: the memory is inconsistent.
		return nil, fmt.Errorf("%w: block %s: %w", fault.ErrUnavailable, e.name, err)
	default:
		// The known state has no room. The read either confirms this, with the reason,
		// or shows that the state was outdated.
		e.doubtful = true
	}
	t.enqueue(e, o)
	return e, nil
}

// reachable checks a requested address of a PerNode pool. It fails with fault.ErrExhausted if
// the address lies in a vacant block that the node may not get now.
func (pl *placement) reachable(p *ipam.Pool, w *want, o *op) error {
	if !p.PerNode() || !w.addr.IsValid() || w.has != nil {
		return nil
	}
	name := ipam.BlockName(p.Domain(), ipam.BlockOf(w.addr))
	if e := pl.known.blocks[name]; e != nil && !e.vacant() {
		return nil
	}
	if n := pl.known.blocksOf(p, o.node, w.family); n >= p.MaxBlocksPerNode() {
		return fmt.Errorf("%w: %s lies in block %s, which no node has: node %s has %d %s blocks of pool %s already, and spec.maxBlocksPerNode allows %d",
			fault.ErrExhausted, w.addr, name, o.node, n, w.family, p.Name(), p.MaxBlocksPerNode())
	}
	if !pl.known.mayRoute(name, o.node) {
		return fmt.Errorf("%w: %s lies in block %s, which was routed to another node less than %s ago: try again later", fault.ErrExhausted, w.addr, name, rerouteDelay)
	}
	return nil
}

// choose returns the block for a take, and whether the block is known to have room.
func (pl *placement) choose(p *ipam.Pool, w *want, o *op) (e *entry, sure bool) {
	switch {
	case w.has != nil && pl.known.blocks[w.has.name] == w.has:
		return w.has, false
	case w.addr.IsValid():
		return pl.known.lookup(p.Domain(), ipam.BlockOf(w.addr), o.node), false
	}
	for {
		for _, early := range []bool{false, true} {
			if e := pl.find(p, w, early); e != nil {
				o.early = early
				return pl.known.claim(e, o.node), true
			}
		}
		if len(w.avoid) == 0 {
			return nil, false
		}
		// A contended block is better than none.
		clear(w.avoid)
	}
}

// vacant reports whether the block is not known to exist, and nothing is being taken from
// it.
func (e *entry) vacant() bool { return e.obj == nil && e.base.Used() == 0 && !e.taking() }

// taking reports whether an address of the block is being taken, or may have been.
func (e *entry) taking() bool {
	return len(e.doubts) > 0 || slices.ContainsFunc(e.flight, (*op).takes) || slices.ContainsFunc(e.queue, (*op).takes)
}

// find returns a block with room for the pool, which may not exist yet. It returns nil
// if every candidate is known to be full.
func (pl *placement) find(p *ipam.Pool, w *want, early bool) *entry {
	now := pl.known.now()
	if p.PerNode() {
		return pl.findOwn(p, w, now, early)
	}
	return pl.findShared(p, w, now, early)
}

// findShared returns the block that last served the node as long as it has room, then
// the next candidate. With order Lowest it always returns the lowest block with room.
func (pl *placement) findShared(p *ipam.Pool, w *want, now ipam.Moment, early bool) *entry {
	suits := func(e *entry) bool {
		if e == nil || e.foreign || w.avoid[e.name] {
			return false
		}
		return e.vacant() || e.node == "" && e.next.Eligible(p, now, early) > 0
	}
	k := place{p.Name(), w.holder.Node, w.family}
	lowest := p.Order() == ipam.Lowest
	if e := pl.known.blocks[pl.last[k]]; !lowest && suits(e) && p.HandsOut(e.prefix) {
		return e
	}
	for prefix := range p.Candidates(w.family, w.holder.Node) {
		name := ipam.BlockName(p.Domain(), prefix)
		e := pl.known.blocks[name]
		if e == nil && !w.avoid[name] {
			e = pl.known.add(p.Domain(), prefix, "")
		}
		if suits(e) {
			if len(pl.last) >= maxPlaces {
				clear(pl.last)
			}
			pl.last[k] = name
			return e
		}
	}
	return nil
}

// findOwn returns a block of the node with room. If there is none and the node may have
// more blocks, it returns the next vacant candidate.
func (pl *placement) findOwn(p *ipam.Pool, w *want, now ipam.Moment, early bool) *entry {
	own := pl.known.byNode[w.holder.Node]
	for _, name := range slices.Sorted(maps.Keys(own)) {
		e := own[name]
		if e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == w.family && !e.foreign &&
			!w.avoid[name] && e.next.Eligible(p, now, early) > 0 {
			return e
		}
	}
	if pl.known.blocksOf(p, w.holder.Node, w.family) >= p.MaxBlocksPerNode() {
		return nil
	}
	for prefix := range p.Candidates(w.family, w.holder.Node) {
		name := ipam.BlockName(p.Domain(), prefix)
		switch e := pl.known.blocks[name]; {
		case w.avoid[name] || !pl.known.mayRoute(name, w.holder.Node):
		case e == nil:
			return pl.known.add(p.Domain(), prefix, w.holder.Node)
		case e.vacant():
			return e
		}
	}
	return nil
}

// exhausted returns a fault.ErrExhausted with counts. The counts include the operations
// under way, which took the last addresses.
func (pl *placement) exhausted(p *ipam.Pool, w *want) error {
	where, why := "", ""
	counts := pl.known.counts(p, true, w.family)
	if p.PerNode() {
		where = " for node " + w.holder.Node
		switch n := pl.known.blocksOf(p, w.holder.Node, w.family); {
		case n >= p.MaxBlocksPerNode():
			why = fmt.Sprintf("; the node has %d blocks of it, and spec.maxBlocksPerNode allows %d", n, p.MaxBlocksPerNode())
		case counts.Free > 0:
			why = ", the free ones in blocks of other nodes"
		}
	}
	return fmt.Errorf("%w: pool %s has no %s address left%s: %s%s", fault.ErrExhausted, p.Name(), w.family, where, counts, why)
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
		p := wants[i].pool()
		s.known.noteCooldown(p)
		if err := s.placement.adopt(p, &wants[i]); err != nil {
			return err
		}
		if err := s.placement.serves(p, &wants[i]); err != nil {
			return err
		}
	}
	return nil
}

func (pl *placement) serves(p *ipam.Pool, w *want) error {
	held := func(l Lease) bool { return l.Holder == (ipam.Holder{}) && l.Domain == p.Domain() && p.Allows(l.Addr) }
	switch {
	case w.has != nil || w.join != (ipam.Holder{}):
		return nil
	case !w.addr.IsValid() && pl.find(p, w, true) == nil && !slices.ContainsFunc(pl.known.claims[w.claim], held):
		return pl.exhausted(p, w)
	case !w.addr.IsValid():
		return nil
	}
	e := pl.known.blocks[ipam.BlockName(p.Domain(), ipam.BlockOf(w.addr))]
	if e == nil {
		return nil
	}
	if err := e.next.Clone().TakeAddr(p, w.holder, w.addr, w.claim, pl.known.now()); err != nil {
		return refusedTake(err)
	}
	return nil
}

// adoptClaim makes the want ask for the address that is held for its claim in the
// family and the pool. It fails with fault.ErrConflict while another holder has an address of
// the claim, in any pool, unless the holder of the want may share it.
//
// A held address is ignored if the pool does not hand it out any more because it was
// reserved, and if another address is requested. The claim gets another address then.
func (pl *placement) adoptClaim(p *ipam.Pool, w *want) error {
	var has *Lease
	for _, l := range pl.known.claims[w.claim] {
		switch {
		case ipam.FamilyOf(l.Addr) != w.family || l.Holder.Same(w.holder):
		case w.mayJoin(p, l):
			w.addr, w.join = l.Addr, l.Holder
		case l.Holder != (ipam.Holder{}):
			return fmt.Errorf("%w: claim %s: %s is still held by %s: the next holder waits until it is given back",
				fault.ErrConflict, w.claim, l.Addr, l.Holder)
		case l.Domain != p.Domain() || !p.Allows(l.Addr):
		case has == nil || l.Addr == w.addr || has.Addr != w.addr && l.Since.Before(has.Since):
			has = &l
		}
	}
	if has != nil && !w.addr.IsValid() {
		w.addr = has.Addr
	}
	return nil
}

// adopt finds the block of the address that the holder has in the family and the pool.
// Two leaders at once may have given the holder several; the address of the claim is
// preferred.
func (pl *placement) adopt(p *ipam.Pool, w *want) error {
	key := keyOf(w.holder)
	var has *Lease
	for _, l := range pl.known.leases[key] {
		if l.Domain != p.Domain() || ipam.FamilyOf(l.Addr) != w.family || !p.Covers(l.Addr) {
			continue
		}
		if l.Addr == w.addr {
			w.has = pl.known.blocks[l.Block]
			return nil
		}
		if has == nil || l.before(*has, w.claim) {
			has = &l
		}
	}
	switch {
	case has != nil && w.addr.IsValid():
		return fmt.Errorf("%w: %s is requested, but %s already has %s: give that back first", fault.ErrConflict, w.addr, w.holder, has.Addr)
	case has != nil:
		w.has = pl.known.blocks[has.Block]
	default:
		if err := pl.adoptClaim(p, w); err != nil {
			return err
		}
		// An address from a take with an unknown outcome is either the requested one or
		// the claim's.
		e := pl.known.doubts[key]
		if e != nil && e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == w.family &&
			(!w.addr.IsValid() || e.prefix.Contains(w.addr)) {
			w.has = e
		}
	}
	return nil
}
