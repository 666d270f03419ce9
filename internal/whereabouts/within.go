package whereabouts

import (
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cidr"
)

// Holds reports whether all addresses that a pool's ranges hand out lie in the range:
// then an interface of the range may have any address of the pool. It is false if a range
// of the pool cannot be parsed.
func (r Range) Holds(spec v1alpha1.IPPoolSpec) bool {
	spans, ok := spansOf(spec)
	return ok && !slices.ContainsFunc(spans, func(s span) bool { return !r.within(s.first) || !r.within(s.last) })
}

// Overlaps reports whether a pool's ranges contain an address of the range's network.
func (r Range) Overlaps(spec v1alpha1.IPPoolSpec) bool {
	spans, _ := spansOf(spec)
	return slices.ContainsFunc(spans, func(s span) bool {
		return s.first.BitLen() == r.First.BitLen() && !cidr.Last(r.Prefix).Less(s.first) && !s.last.Less(r.Prefix.Addr())
	})
}

// spansOf returns the ranges of a pool that can be parsed; ok is false if one cannot be
// parsed, or if there is none.
func spansOf(spec v1alpha1.IPPoolSpec) (out []span, ok bool) {
	ok = len(spec.Ranges) > 0
	for _, text := range spec.Ranges {
		s, fine := spanOf(text, spec.UseEdges)
		if !fine {
			ok = false
			continue
		}
		out = append(out, s)
	}
	return out, ok
}

// spanOf parses a range of an IPPool: a CIDR, first-last with or without a prefix length,
// or an address.
func spanOf(text string, edges bool) (span, bool) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		last, _, _ = strings.Cut(last, "/")
		f, err1 := netip.ParseAddr(first)
		l, err2 := netip.ParseAddr(last)
		return span{f, l}, err1 == nil && err2 == nil && f.BitLen() == l.BitLen() && !l.Less(f)
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		if edges {
			return span{p.Masked().Addr(), cidr.Last(p)}, true
		}
		first, last := usable(p.Masked())
		return span{first, last}, true
	}
	a, err := netip.ParseAddr(text)
	return span{a, a}, err == nil
}
