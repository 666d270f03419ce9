package ipam

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// num is an address as a number; IPv4 is in the low 32 bits. Arithmetic is 128 bits
// wide, so an IPv6 /64 and an offset in it do not overflow.
type num struct{ hi, lo uint64 }

func numOf(a netip.Addr) num {
	if a.Is4() {
		b := a.As4()
		return num{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return num{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

func (n num) addr(f Family) netip.Addr {
	if f == IPv4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n num) cmp(o num) int {
	return cmp.Or(cmp.Compare(n.hi, o.hi), cmp.Compare(n.lo, o.lo))
}

func (n num) add(o num) num {
	lo, carry := bits.Add64(n.lo, o.lo, 0)
	hi, _ := bits.Add64(n.hi, o.hi, carry)
	return num{hi, lo}
}

// sub returns n - o; o must not exceed n.
func (n num) sub(o num) num {
	lo, borrow := bits.Sub64(n.lo, o.lo, 0)
	hi, _ := bits.Sub64(n.hi, o.hi, borrow)
	return num{hi, lo}
}

func (n num) shr6() num { return num{n.hi >> 6, n.hi<<58 | n.lo>>6} }

func (n num) shl6() num { return num{n.hi<<6 | n.lo>>58, n.lo << 6} }

// span is the addresses from first to last, both included.
type span struct{ first, last num }

func spanOf(first, last netip.Addr) span { return span{numOf(first), numOf(last)} }

func (s span) contains(n num) bool { return s.first.cmp(n) <= 0 && n.cmp(s.last) <= 0 }

func (s span) covers(o span) bool { return s.contains(o.first) && s.contains(o.last) }

func (s span) overlaps(o span) bool {
	return s.first.cmp(o.last) <= 0 && o.first.cmp(s.last) <= 0
}

// size returns the number of addresses, at most math.MaxInt64.
func (s span) size() uint64 {
	d := s.last.sub(s.first)
	if d.hi > 0 {
		return saturating
	}
	return addSaturating(d.lo, 1)
}

// subtract returns the parts of s outside the holes, which are sorted and do not
// overlap.
func (s span) subtract(holes []span) []span {
	var left []span
	one := num{lo: 1}
	for _, h := range holes {
		if !s.overlaps(h) {
			continue
		}
		if s.first.cmp(h.first) < 0 {
			left = append(left, span{s.first, h.first.sub(one)})
		}
		if s.last.cmp(h.last) <= 0 {
			return left
		}
		s.first = h.last.add(one)
	}
	return append(left, s)
}

// normalize sorts spans and merges those that touch or overlap.
func normalize(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.first.cmp(b.first) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.first.cmp(out[n-1].last.add(num{lo: 1})) <= 0 {
			if out[n-1].last.cmp(s.last) < 0 {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// slotsPerBlock is the size of a block in every domain, and never changes: a block is
// an IPv4 /26 or an IPv6 /122, aligned in the whole address space.
const slotsPerBlock = 64

// BlockOf returns the prefix of the block that contains an address.
func BlockOf(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, a.BitLen()-6).Masked()
}

// BlockName returns the object name of a block: <domain>.<4|6>-<first address in
// hexadecimal digits>.
func BlockName(domain string, block netip.Prefix) string {
	const digits = "0123456789abcdef"
	a := block.Addr()
	out := append(make([]byte, 0, len(domain)+35), domain...)
	out = append(out, '.', '0'+byte(FamilyOf(a)), '-')
	for _, b := range a.AsSlice() {
		out = append(out, digits[b>>4], digits[b&15])
	}
	return string(out)
}

// blockRun is n neighbouring blocks, beginning with block number base. The number of a
// block is its first address divided by 64.
type blockRun struct {
	base num
	n    uint64
}

// runsOf returns the blocks that the spans reach into. The spans are sorted.
func runsOf(spans []span) []blockRun {
	var runs []blockRun
	var last num
	for _, s := range spans {
		first := s.first.shr6()
		if len(runs) > 0 && first.cmp(last) == 0 {
			if s.last.shr6().cmp(last) == 0 {
				continue
			}
			first = last.add(num{lo: 1})
		}
		last = s.last.shr6()
		runs = append(runs, blockRun{first, span{first, last}.size()})
	}
	return runs
}
