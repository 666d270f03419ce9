package ipam

import (
	"net/netip"
)

// This file has functions for programs that show a pool or a block to people.

// Withheld returns why a pool never hands out an address of its ranges: "its gateway",
// "excluded" or "an edge of its range". It returns "" if the pool hands the address
// out, or the address is not in its ranges.
func (p *Pool) Withheld(a netip.Addr) string {
	r, ok := p.rangeOf(a)
	if !ok || p.Allows(a) {
		return ""
	}
	if gw, ok := p.Gateway(FamilyOf(a)); ok && gw == a {
		return "its gateway"
	}
	for _, e := range r.edges() {
		if e.contains(numOf(a)) {
			return "an edge of its range"
		}
	}
	return "excluded"
}

// Blocks returns the number of blocks with addresses that the pool may hand out, of
// both families, at most math.MaxInt64.
func (p *Pool) Blocks() uint64 {
	var n uint64
	for _, f := range p.Families() {
		_, total := p.blocks(f)
		n = addSaturating(n, total)
	}
	return n
}

// Addrs returns the addresses of a block by ordinal.
func Addrs(block netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, slotsPerBlock)
	for i, a := 0, block.Addr(); i < slotsPerBlock; i, a = i+1, a.Next() {
		out[i] = a
	}
	return out
}

// Unreadable is an unreadable record of a block.
type Unreadable struct {
	// Addr is the address of the record. It is invalid if it is unreadable too; the
	// block then withholds every address without a record.
	Addr netip.Addr
	// Text is the record as it was found.
	Text string
}

// Unreadable returns the quarantined records in the order of reading.
func (b *Block) Unreadable() []Unreadable {
	var out []Unreadable
	for _, r := range b.raw {
		u := Unreadable{Text: r.text}
		if r.ordinal >= 0 {
			u.Addr = b.addr(r.ordinal)
		}
		out = append(out, u)
	}
	return out
}

// Fresh reports whether an address without a record may be handed out. It may not if
// the block has an unreadable record that names no address.
func (b *Block) Fresh(a netip.Addr) bool {
	ord, ok := b.ordinal(a)
	return ok && b.fresh(^uint64(0))&(1<<ord) != 0
}

// Cooling reports whether a freed address is still cooling down, by the pool's
// cooldown.
func (b *Block) Cooling(p *Pool, a netip.Addr, now Moment) bool {
	ord, ok := b.ordinal(a)
	return ok && b.freed&^b.rested(now, p.cooldown)&(1<<ord) != 0
}
