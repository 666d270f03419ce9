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

// Loss is an address that should be a holder's, and no block says so: somebody has
// edited or deleted a block, or put it back to an older state. Until it is known what
// is so the address is handed out to nobody.
type Loss struct {
	Holder ipam.Holder
	Domain string
	Addr   netip.Addr
	// Claim for which the address was taken; empty for none.
	Claim string
	// Node to which the block has to be routed if there is none; empty for a shared one.
	Node string

	// seen is the generation of the slot when Lost told of it: who looks into the loss
	// judges that state and no other.
	seen uint64
	// there says that the block was there then.
	there bool
}

// of says whether a loss is of one holder and one address.
func (l Loss) of(h ipam.Holder, a netip.Addr) bool { return l.Addr == a && l.Holder.Same(h) }

// Unsaid reports whether its block is there and says nothing of the address any more: not
// even that it was freed, and has to rest. A block that is gone was idle, or is made anew
// with what it said (Rewrite).
func (l Loss) Unsaid() bool { return l.there && l.seen == 0 }

// Guard makes the store look for losses, or no longer: on a standby everything that the
// leader frees would look like one. What was lost is forgotten when it ends.
func (s *Store) Guard(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guards = on
	if on {
		return
	}
	for e := range s.losing {
		e.lost = nil
		s.withhold(e)
		s.sweep(e)
	}
}

// Losses has an element when there is something new for Lost or Rewrite.
func (s *Store) Losses() <-chan struct{} { return s.alarm }

// Lost returns the losses that are known, sorted by domain and address. It reads memory
// only.
func (s *Store) Lost() []Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Loss
	for e := range s.losing {
		for _, l := range e.lost {
			slot, _ := e.base.Slot(l.Addr)
			l.seen, l.there = slot.Generation, e.obj != nil
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Loss) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), a.Addr.Compare(b.Addr), cmp.Compare(a.Holder.PodUID, b.Holder.PodUID))
	})
	return out
}

// Miss tells of an address that a holder has by its record. If the blocks say that too
// it changes nothing and returns false; else the address is a loss from now on. It reads
// memory only.
func (s *Store) Miss(l Loss) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.blocks[ipam.BlockName(l.Domain, ipam.BlockOf(l.Addr))]
	if e != nil {
		if slot, _ := e.base.Slot(l.Addr); slot.State == ipam.Taken && slot.Holder.Same(l.Holder) {
			return false
		}
	}
	if !s.guards {
		return true
	}
	e = s.lookup(l.Domain, ipam.BlockOf(l.Addr), l.Node)
	s.lost(e, l)
	s.withhold(e)
	return true
}

// Absolve ends a loss: the holder does not have the address any more.
func (s *Store) Absolve(l Loss) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.blocks[ipam.BlockName(l.Domain, ipam.BlockOf(l.Addr))]
	if e == nil {
		return
	}
	e.lost = slices.DeleteFunc(e.lost, func(o Loss) bool { return o.of(l.Holder, l.Addr) })
	s.withhold(e)
	s.sweep(e)
}

// Restore makes an address its holder's again that Lost has told of, once that is written.
// What another holder has stays his.
//
// It fails with ErrConflict when another holder has the address or its record cannot be
// read, with ErrInvalid, and with ErrUnavailable, also when the slot has changed since Lost
// told of it: the holder may have given it back. The loss is over when it succeeds.
func (s *Store) Restore(ctx context.Context, l Loss) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		unlock, err := s.owners.lock(ctx, keyOf(l.Holder))
		if err != nil {
			return nil, err
		}
		defer unlock()
		o := &op{kind: opRestore, holder: l.Holder, addr: l.Addr, claim: l.Claim, seen: l.seen, there: l.there, cancel: ctx.Done(), done: make(chan struct{})}
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		e := s.lookup(l.Domain, ipam.BlockOf(l.Addr), l.Node)
		if e.absent() && e.node != l.Node {
			s.route(e, l.Node) // it is made anew as the record has it
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

// Rewrite makes the blocks anew that somebody deleted although addresses in them were
// taken or held, with what they said. Losses tells of them.
//
// It fails with ErrUnavailable.
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

// kick makes a block's committer go on at once.
func (s *Store) kick(e *entry) {
	s.start(e)
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// applyRestore gives next what it has lost. It fails with ErrConflict, ErrInvalid and
// ErrUnavailable.
func (e *entry) applyRestore(o *op) error {
	if e.foreign {
		return fmt.Errorf("%w: %s lies in block %s, which %s", ErrConflict, o.addr, e.name, e.whose(o))
	}
	if o.there && e.obj == nil {
		return fmt.Errorf("%w: block %s is gone since: look again", ErrUnavailable, e.name)
	}
	if slot, _ := e.base.Slot(o.addr); slot.Generation != o.seen && (slot.State != ipam.Taken || !slot.Holder.Same(o.holder)) {
		return fmt.Errorf("%w: block %s: %s has changed: look again", ErrUnavailable, e.name, o.addr)
	}
	changed, err := e.next.Restore(o.holder, o.addr, o.claim, o.at)
	if err != nil {
		return refusedTake(err)
	}
	o.changed = changed || e.obj == nil
	return nil
}

// compare notes what a block said and says no longer, in a state that came from
// elsewhere. What is being freed here is no loss.
func (s *Store) compare(e *entry, now *ipam.Block) {
	if !s.guards {
		return
	}
	for was := range e.base.Slots() {
		if was.State != ipam.Taken || e.frees(was) {
			continue
		}
		if is, _ := now.Slot(was.Addr); is.State == ipam.Taken && is.Holder.Same(was.Holder) {
			continue
		}
		s.lost(e, Loss{Holder: was.Holder, Domain: e.domain, Addr: was.Addr, Claim: was.Claim, Node: e.node})
	}
}

// frees says whether a slot is about to be freed, or may have been, by an operation of
// this store.
func (e *entry) frees(slot ipam.Slot) bool {
	frees := func(o *op) bool {
		return o.kind == opFree && o.holder.Same(slot.Holder) && (!o.addr.IsValid() || o.addr == slot.Addr)
	}
	return slices.ContainsFunc(e.flight, frees) || slices.ContainsFunc(e.queue, frees)
}

// lost notes a loss.
func (s *Store) lost(e *entry, l Loss) {
	if !slices.ContainsFunc(e.lost, func(o Loss) bool { return o.of(l.Holder, l.Addr) }) {
		e.lost = append(e.lost, l)
	}
	s.losing[e] = struct{}{}
	s.raise()
}

// raise tells of something for Lost or Rewrite.
func (s *Store) raise() {
	select {
	case s.alarm <- struct{}{}:
	default:
	}
}

// withhold keeps what is lost from being handed out. What base says again is lost no
// more. While a write is under way next has what base had: it is put right by whatever
// the write comes to.
func (s *Store) withhold(e *entry) {
	e.lost = slices.DeleteFunc(e.lost, func(l Loss) bool {
		slot, _ := e.base.Slot(l.Addr)
		return slot.State == ipam.Taken && slot.Holder.Same(l.Holder)
	})
	if len(e.lost) == 0 {
		delete(s.losing, e)
		if !e.base.Withholds() {
			return
		}
	}
	var addrs []netip.Addr
	for _, l := range e.lost {
		addrs = append(addrs, l.Addr)
	}
	e.base.Withhold(addrs)
	if e.next != e.base {
		e.next.Withhold(addrs)
	}
}

// Refused reports whether an error of Restore says that another has the address, or
// that it cannot be said: to try again at once does not help.
func Refused(err error) bool { return errors.Is(err, ErrConflict) || errors.Is(err, ErrInvalid) }
