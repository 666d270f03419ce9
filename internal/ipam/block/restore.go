package block

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/ipam"
)

// Loss is an address that should have a holder, but no block has a record of it: the
// block was edited, deleted or replaced by an older state. Until the loss is resolved,
// the address is not handed out.
type Loss struct {
	Holder ipam.Holder
	Domain string
	Addr   netip.Addr
	// Claim that the address was taken for; empty for none.
	Claim string
	// Node that the block is routed to if it has to be created; empty for a shared
	// block.
	Node string

	// beside is the other holder that the lost record had; zero for none.
	beside ipam.Holder
	// generation is the generation of the slot when Lost returned the loss. The caller
	// judges this state only.
	generation uint64
	// present is true if the block existed then.
	present bool
}

// of reports whether the loss is of this holder and address.
func (l Loss) of(h ipam.Holder, a netip.Addr) bool { return l.Addr == a && l.Holder.Same(h) }

// Unsaid reports whether the block exists but has no record of the address: not even
// that it was freed and is cooling down. If the block is gone, it was idle, or Rewrite
// creates it again with its last state.
func (l Loss) Unsaid() bool { return l.present && l.generation == 0 }

// Guard turns the search for losses on or off. It must be off on a standby, where each
// free of the leader would look like a loss. Turning it off forgets all losses.
func (s *Store) Guard(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarding = on
	if on {
		return
	}
	for e := range s.withLosses {
		e.losses = nil
		s.withhold(e)
		s.forgetEmpty(e)
	}
}

// Losses returns a channel that has an element if there is work for Lost or Rewrite.
func (s *Store) Losses() <-chan struct{} { return s.lossAlarm }

// Lost returns the known losses, sorted by domain and address. It reads memory only.
func (s *Store) Lost() []Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Loss
	for e := range s.withLosses {
		for _, l := range e.losses {
			slot, _ := e.base.Slot(l.Addr)
			l.generation, l.present = slot.Generation, e.obj != nil
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Loss) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), a.Addr.Compare(b.Addr), cmp.Compare(a.Holder.PodUID, b.Holder.PodUID))
	})
	return out
}

// Miss takes an address that a holder has by its record. It returns false if the blocks
// agree, and true otherwise. In the second case the address becomes a loss, if Guard is
// on. It reads memory only.
func (s *Store) Miss(l Loss) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.blocks[ipam.BlockName(l.Domain, ipam.BlockOf(l.Addr))]
	if e != nil {
		if slot, _ := e.base.Slot(l.Addr); slot.Has(l.Holder) {
			return false
		}
	}
	if !s.guarding {
		return true
	}
	e = s.lookup(l.Domain, ipam.BlockOf(l.Addr), l.Node)
	s.addLoss(e, l)
	s.withhold(e)
	return true
}

// Absolve ends a loss: the holder no longer has the address.
func (s *Store) Absolve(l Loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.blocks[ipam.BlockName(l.Domain, ipam.BlockOf(l.Addr))]
	if e == nil {
		return
	}
	e.losses = slices.DeleteFunc(e.losses, func(o Loss) bool { return o.of(l.Holder, l.Addr) })
	s.withhold(e)
	s.forgetEmpty(e)
}

// Restore gives the address of a loss that Lost returned back to its holder. It returns
// nil when that is written; the loss is then over. An address of another holder is left
// alone.
//
// Errors: ErrConflict if another holder has the address, or its record is unreadable;
// ErrInvalid; ErrUnavailable also if the slot has changed since Lost returned the loss,
// as the holder may have given the address back.
func (s *Store) Restore(ctx context.Context, l Loss) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		unlock, err := s.owners.lock(ctx, keyOf(l.Holder))
		if err != nil {
			return nil, err
		}
		defer unlock()
		o := &op{kind: opRestore, holder: l.Holder, addr: l.Addr, claim: l.Claim, join: l.beside, generation: l.generation, present: l.present, cancel: ctx.Done(), done: make(chan struct{})}
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		e := s.lookup(l.Domain, ipam.BlockOf(l.Addr), l.Node)
		if e.absent() && e.node != l.Node {
			s.route(e, l.Node) // create it again as the record has it
		}
		if err := e.apply(o, s.now()); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		t.at = e
		e.queue = append(e.queue, o)
		s.kick(e)
		s.mu.Unlock()
		return nil, wait([]*op{o})
	})
	return err
}

// Rewrite creates the blocks again that were deleted by hand while addresses of them
// were taken or held, with their last state. Losses announces them.
//
// Errors: ErrUnavailable.
func (s *Store) Rewrite(ctx context.Context) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		var ops []*op
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		for _, name := range slices.Sorted(maps.Keys(s.blocks)) {
			e := s.blocks[name]
			if e.obj != nil || e.base.Used() == 0 {
				continue
			}
			o := &op{kind: opRewrite, cancel: ctx.Done(), done: make(chan struct{})}
			t.enqueue(e, o)
			ops = append(ops, o)
		}
		s.mu.Unlock()
		return nil, wait(ops)
	})
	return err
}

// kick makes the block's committer continue at once.
func (s *Store) kick(e *entry) {
	s.start(e)
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// applyRestore restores a lost record in e.next. Errors: ErrConflict, ErrInvalid,
// ErrUnavailable.
func (e *entry) applyRestore(o *op) error {
	if e.foreign {
		return fmt.Errorf("%w: %s lies in block %s, which %s", ErrConflict, o.addr, e.name, e.unusable(o))
	}
	if o.present && e.obj == nil {
		return fmt.Errorf("%w: block %s was deleted meanwhile: list the losses again", ErrUnavailable, e.name)
	}
	if slot, _ := e.base.Slot(o.addr); slot.Generation != o.generation && !slot.Has(o.holder) {
		return fmt.Errorf("%w: block %s: the record of %s has changed: list the losses again", ErrUnavailable, e.name, o.addr)
	}
	changed, err := e.next.Restore(o.holder, o.addr, o.claim, o.join, o.at)
	if err != nil {
		return refusedTake(err)
	}
	o.changed = changed || e.obj == nil
	return nil
}

// compare records the holders that have an address in e.base but not in now, a state
// from elsewhere. An address that this store is freeing is no loss.
func (s *Store) compare(e *entry, now *ipam.Block) {
	if !s.guarding {
		return
	}
	for was := range e.base.Slots() {
		is, _ := now.Slot(was.Addr)
		for h := range was.Holders() {
			if is.Has(h) || e.isFreeing(h, was.Addr) {
				continue
			}
			l := Loss{Holder: h, Domain: e.domain, Addr: was.Addr, Claim: was.Claim, Node: e.node, beside: was.Holder}
			if l.beside.Same(h) {
				l.beside = was.Second
			}
			s.addLoss(e, l)
		}
	}
}

// isFreeing reports whether an operation of this store is about to free a holder's address,
// or may have freed it.
func (e *entry) isFreeing(h ipam.Holder, a netip.Addr) bool {
	frees := func(o *op) bool {
		return o.kind == opFree && o.holder.Same(h) && (!o.addr.IsValid() || o.addr == a)
	}
	return slices.ContainsFunc(e.flight, frees) || slices.ContainsFunc(e.queue, frees)
}

// addLoss records a loss.
func (s *Store) addLoss(e *entry, l Loss) {
	if !slices.ContainsFunc(e.losses, func(o Loss) bool { return o.of(l.Holder, l.Addr) }) {
		e.losses = append(e.losses, l)
	}
	s.withLosses[e] = struct{}{}
	s.announceLoss()
}

// announceLoss announces work for Lost or Rewrite.
func (s *Store) announceLoss() {
	select {
	case s.lossAlarm <- struct{}{}:
	default:
	}
}

// withhold keeps the lost addresses from being handed out, and ends the losses that
// base has a record of again. During a write, e.next may still have the state of the
// former base, until the outcome of the write corrects it.
func (s *Store) withhold(e *entry) {
	e.losses = slices.DeleteFunc(e.losses, func(l Loss) bool {
		slot, _ := e.base.Slot(l.Addr)
		return slot.Has(l.Holder)
	})
	if len(e.losses) == 0 {
		delete(s.withLosses, e)
		if !e.base.Withholds() {
			return
		}
	}
	var addrs []netip.Addr
	for _, l := range e.losses {
		addrs = append(addrs, l.Addr)
	}
	e.base.Withhold(addrs)
	if e.next != e.base {
		e.next.Withhold(addrs)
	}
}

// Refused reports whether an immediate repetition of Restore is useless: another holder
// has the address, or the record is unreadable or invalid.
func Refused(err error) bool { return errors.Is(err, ErrConflict) || errors.Is(err, ErrInvalid) }
