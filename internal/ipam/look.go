package ipam

import (
	"net/netip"
)

// This file is for programs that show a pool or a block to people.

// Withheld says why a pool never hands out an address that lies in its ranges:
// "its gateway", "excluded" or "an edge of its range"; empty when it does, and
// when the address is not in its ranges at all.
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

// Blocks counts the blocks with addresses that the pool may hand out, of both
// families; it stops at math.MaxInt64.
func (p *Pool) Blocks() uint64 {
	var n uint64
	for _, f := range p.Families() {
		_, total := p.blocks(f)
		n = addSaturating(n, total)
	}
	return n
}

// Addrs are the addresses of a block by ordinal.
func Addrs(block netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, slotsPerBlock)
	for i, a := 0, block.Addr(); i < slotsPerBlock; i, a = i+1, a.Next() {
		out[i] = a
	}
	return out
}

// Unreadable is a record of a block that cannot be read.
type Unreadable struct {
	// Addr is what the record is about; invalid when not even that is known,
	// and the block then withholds every address without a record.
	Addr netip.Addr
	// Text as it was found.
	Text string
}

// Unreadable returns what was quarantined, in the order in which it was read.
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

// Fresh says whether an address that has no record may be handed out: not while
// a record of the block that names no address cannot be read.
func (b *Block) Fresh(a netip.Addr) bool {
	ord, ok := b.ordinal(a)
	return ok && b.fresh(^uint64(0))&(1<<ord) != 0
}

// Cooling says whether a freed address still rests, by the pool's cooldown.
func (b *Block) Cooling(p *Pool, a netip.Addr, now Moment) bool {
	ord, ok := b.ordinal(a)
	return ok && b.freed&^b.rested(now, p.cooldown)&(1<<ord) != 0
}
