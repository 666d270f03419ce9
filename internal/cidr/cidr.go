// Package cidr computes with prefixes: the last address, the prefixes of a range, and the fewest
// prefixes with the same addresses.
package cidr

import (
	"net/netip"
	"slices"
)

// Last returns the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Between returns the fewest prefixes that have exactly the addresses from first to last, in
// order; none if last is before first. Both are of one family.
func Between(first, last netip.Addr) (out []netip.Prefix) {
	for a := first; a.IsValid() && a.Compare(last) <= 0; { // an address after the last of all is not valid
		best := netip.PrefixFrom(a, a.BitLen())
		for bits := a.BitLen() - 1; bits >= 0; bits-- {
			wider := netip.PrefixFrom(a, bits)
			if wider.Masked() != wider || Last(wider).Compare(last) > 0 {
				break
			}
			best = wider
		}
		out = append(out, best)
		a = Last(best).Next()
	}
	return out
}

// Aggregate returns the fewest prefixes with the same addresses, in order and without host bits.
// They do not overlap. It joins no prefixes into one of fewer bits than least.
func Aggregate(all []netip.Prefix, least int) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(all))
	for _, p := range all {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) { // the wider one is sorted first
			continue
		}
		out = append(out, p)
		for n := len(out); n > 1; n = len(out) {
			both, ok := union(out[n-2], out[n-1])
			if !ok || both.Bits() < least {
				break
			}
			out = append(out[:n-2], both)
		}
	}
	return out
}

// union returns the prefix whose halves are a and b; false if there is none.
func union(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().Is4() != b.Addr().Is4() {
		return netip.Prefix{}, false
	}
	both := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return both, both.Contains(b.Addr())
}
