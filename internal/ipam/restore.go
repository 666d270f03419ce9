package ipam

import (
	"fmt"
	"net/netip"
)

// Restore gives an address back to the holder whose it is, although the block has lost
// that: somebody edited or deleted its object, or put it back to an older state. The
// address need not have rested, and the pool does not matter. It returns true when
// that changes the block.
//
// It fails with a *TakenError when another has the address by now, when its record
// cannot be read or when the block has no room for one, and with ErrBadHolder,
// ErrBadClaim and ErrNotAllowed.
func (b *Block) Restore(h Holder, a netip.Addr, claim string, now Moment) (changed bool, err error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	if claim != "" && !validClaim(claim) {
		return false, fmt.Errorf("%w: %q", ErrBadClaim, claim)
	}
	ord, ok := b.ordinal(a)
	if !ok {
		return false, fmt.Errorf("%w: %s is not in block %s", ErrNotAllowed, a, b.prefix)
	}
	switch s := &b.slots[ord]; {
	case s.state == Taken && s.holder.Same(h):
		return false, nil
	case s.state == Taken:
		return false, &TakenError{Addr: a, Asker: h, Holder: s.holder}
	case s.state == Damaged:
		return false, &TakenError{Addr: a, Reason: "is withheld: its record in block " + b.prefix.String() + " cannot be read"}
	case s.state == unused && b.records() >= slotsPerBlock:
		return false, &TakenError{Addr: a, Reason: "is withheld: block " + b.prefix.String() + " has no room for its record"}
	}
	b.give(ord, h, claim, now)
	return true, nil
}

// Withhold sets which addresses of the block are handed out to nobody for now, whatever
// their records say: it is not known whether somebody uses them. Those of an earlier
// call are withheld no longer. It is not part of what Encode writes.
func (b *Block) Withhold(addrs []netip.Addr) {
	b.withheld = 0
	for _, a := range addrs {
		if ord, ok := b.ordinal(a); ok {
			b.withheld |= 1 << ord
		}
	}
}

// Withholds reports whether Withhold has set any address.
func (b *Block) Withholds() bool { return b.withheld != 0 }
