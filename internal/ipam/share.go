package ipam

import (
	"fmt"
	"net/netip"
)

// Join makes h the second holder of an address that first has for a claim. Both are
// launchers of one virtual machine while it migrates: the caller has proof of that. They
// run in one namespace and on two nodes. The address needs no cooldown and may be reserved,
// because the machine uses it already.
//
// Errors: *TakenError if first is not the only holder, if the address is kept for another
// claim, if the two are on one node, or if the names do not fit into one record;
// ErrNotAllowed, ErrBadHolder.
func (b *Block) Join(h, first Holder, a netip.Addr, claim string, now Moment) error {
	if err := h.Validate(); err != nil {
		return err
	}
	ord, ok := b.ordinal(a)
	if !ok {
		return fmt.Errorf("%w: %s is not in block %s", ErrNotAllowed, a, b.prefix)
	}
	was := &b.slots[ord]
	switch {
	case was.has(h):
		return nil
	case !was.has(first):
		return &TakenError{Addr: a, Asker: h, Holder: was.holder, Claim: was.claim, Reason: "has no holder to join"}
	case was.second != (Holder{}):
		return &TakenError{Addr: a, Asker: h, Holder: was.holder, Second: was.second}
	case claim == "" || was.claim != claim || h.Namespace != first.Namespace || h.Node == was.holder.Node:
		return &TakenError{Addr: a, Asker: h, Holder: was.holder}
	}
	s := *was
	s.second, s.joined, s.gen = h, ceilMillis(now.Wall), was.gen+1
	if s.past = ""; len(s.encode(ord)) > maxSlotLength {
		return &TakenError{Addr: a, Reason: fmt.Sprintf("cannot be shared while the machine migrates: the names of both pods, their nodes and the claim have more than %d characters", maxSlotLength)}
	}
	s.past = was.past
	b.change(ord, s)
	return nil
}

// has reports whether h is a holder of the slot.
func (s *slot) has(h Holder) bool {
	return s.state == Taken && (s.holder.Same(h) || s.second != (Holder{}) && s.second.Same(h))
}

// without returns a slot with two holders as it is when h has given the address back.
func (s *slot) without(h Holder, now int64) slot {
	if s.holder.Same(h) {
		return slot{state: Taken, at: s.joined, holder: s.second, claim: s.claim, past: s.pastWith(s.holder, s.at, now)}
	}
	return slot{state: Taken, at: s.at, holder: s.holder, claim: s.claim, past: s.pastWith(s.second, s.joined, now)}
}
