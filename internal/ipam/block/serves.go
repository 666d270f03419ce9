package block

import (
	"slices"

	"fairlead.dev/fairlead/internal/ipam"
)

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
