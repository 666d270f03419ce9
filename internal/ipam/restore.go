package ipam

import (
	"fmt"
	"net/netip"
)

// Restore gives an address back to its holder after the block has lost the record: its
// object was edited, deleted, or replaced by an older state. The address needs no
// cooldown, and the pool does not matter. Restore returns true if it
// changes the block.
//
// Errors: *TakenError if another holder has the address, its record is unreadable, or
// the block has no room for a record; ErrBadHolder, ErrBadClaim, ErrNotAllowed.
func (b *Block) Restore(h Holder, a netip.Addr, claim string, now Moment) (changed bool, err error) {
	if err := h.Validate(); err != nil {
		return false, err
	}
	if claim != "" && !ValidClaim(claim) {
		return false, fmt.Errorf("%w: %q", ErrBadClaim, claim)
	}
	ord, ok := b.ordinal(a)
	if !ok {
		return false, fmt.Errorf("%w: %s is not in block %s", ErrNotAllowed, a, b.prefix)
	}
	switch s := &b.slots[ord]; {
	case s.has(h):
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
