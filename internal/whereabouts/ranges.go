package whereabouts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"

	"fairlead.dev/fairlead/internal/cidr"
)

// parseRange parses one range: "10.0.0.0/24", or "10.0.0.10-10.0.0.20/24", whose ends
// take precedence over range_start and range_end.
func (p *parser) parseRange(field string, o rangeOptions) (r Range, ok bool) {
	of := strings.TrimSuffix(field, "range")
	start, startField := o.RangeStart, of+"range_start"
	end, endField := o.RangeEnd, of+"range_end"
	network := o.Range
	if first, rest, dash := strings.Cut(o.Range, "-"); dash {
		last, _, _ := strings.Cut(rest, "/")
		start, end, network = first, last, rest
		startField, endField = field, field
	}
	prefix, ok := sloppyPrefix(network)
	if !ok || prefix.Bits() < 1 {
		p.bad(field, o.Range, "must be a CIDR as 10.0.0.0/24, or first-last/length as 10.0.0.10-10.0.0.20/24")
		return r, false
	}
	r.Prefix = prefix.Masked()
	if what := special(r.Prefix); what != "" {
		p.bad(field, o.Range, "has %s: only unicast addresses can be handed out", what)
		return r, false
	}
	r.First, r.Last = usable(r.Prefix)
	if network != o.Range {
		if a, ok := sloppyAddr(start); !ok || !r.Prefix.Contains(a) {
			p.bad(field, o.Range, "must begin with an address of %s", r.Prefix)
			return r, false
		}
	}
	if start != "" {
		if a, ok := sloppyAddr(start); ok && r.within(a) {
			r.First = a
		} else if a != r.Prefix.Addr() {
			p.warn("%s: %q is no address for a pod in %s: the range begins with %s, as with whereabouts", startField, start, r.Prefix, r.First)
		}
	}
	if end != "" {
		if a, ok := sloppyAddr(end); ok && r.within(a) {
			r.Last = a
		} else if a != cidr.Last(r.Prefix) {
			p.warn("%s: %q is no address for a pod between %s and %s: the range ends with the latter, as with whereabouts", endField, end, r.First, r.Last)
		}
	}
	return r, p.excludes(of+"exclude", o.Exclude, &r)
}

// excludes parses excludes: CIDRs and addresses.
func (p *parser) excludes(field string, list []string, r *Range) bool {
	ok := true
	for i, text := range list {
		e, fine := sloppyPrefix(text)
		if a, isAddr := sloppyAddr(text); isAddr {
			e, fine = netip.PrefixFrom(a, a.BitLen()), true
		}
		switch {
		case !fine:
			p.bad(fmt.Sprintf("%s[%d]", field, i), text, "must be a CIDR as 10.0.0.0/28, or an address")
			ok = false
		case !e.Overlaps(r.Prefix):
			p.warn("%s[%d]: %.64q lies outside of range %s", field, i, text, r.Prefix)
		default:
			r.Excludes = append(r.Excludes, e.Masked())
		}
	}
	return ok
}

// within reports whether an address lies between First and Last.
func (r Range) within(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// handsOut reports whether an address may be handed out.
func (r Range) handsOut(a netip.Addr) bool {
	return r.within(a) && !slices.ContainsFunc(r.Excludes, func(e netip.Prefix) bool { return e.Contains(a) })
}

// span is a sequence of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// holes returns the excluded parts of the range, sorted and disjoint.
func (r Range) holes() []span {
	var all []span
	for _, e := range r.Excludes {
		s := span{e.Addr(), cidr.Last(e)}
		if s.first.Less(r.First) {
			s.first = r.First
		}
		if r.Last.Less(s.last) {
			s.last = r.Last
		}
		if !s.last.Less(s.first) {
			all = append(all, s)
		}
	}
	return join(all)
}

// join sorts spans and merges adjacent and overlapping ones.
func join(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && (s.first.Compare(out[n-1].last) <= 0 || out[n-1].last.Next() == s.first) {
			if out[n-1].last.Less(s.last) {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// available returns the spans that may be handed out.
func (r Range) available(gateway netip.Addr) []span {
	holes := r.holes()
	if gateway.IsValid() && r.within(gateway) {
		holes = join(append(holes, span{gateway, gateway}))
	}
	var out []span
	next := r.First
	for _, h := range holes {
		if next.Less(h.first) {
			out = append(out, span{next, h.first.Prev()})
		}
		next = h.last.Next()
	}
	if next.IsValid() && !r.Last.Less(next) {
		out = append(out, span{next, r.Last})
	}
	return out
}

// usable returns the addresses of a network that are handed out by default: all but the
// edges, as in an IPPool. In contrast, whereabouts refuses networks of one or two
// addresses, and withholds the last address of IPv6 networks.
func usable(p netip.Prefix) (first, last netip.Addr) {
	first, last = p.Addr(), cidr.Last(p)
	if p.Bits() >= first.BitLen()-1 {
		return first, last
	}
	if first.Is4() {
		last = last.Prev()
	}
	return first.Next(), last
}

// special returns a description of addresses in a network that no interface may have;
// empty if there are none.
func special(p netip.Prefix) string {
	for _, s := range []string{"0.0.0.0/32", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32", "::/127", "::ffff:0:0/96", "ff00::/8"} {
		if netip.MustParsePrefix(s).Overlaps(p) {
			return "addresses of " + s
		}
	}
	return ""
}

// sloppyAddr parses an address as whereabouts does: its numbers may have any count of
// leading zeros, and the numbers of an IPv4 address are decimal nevertheless.
func sloppyAddr(text string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return a.Unmap(), ok
}

// sloppyPrefix parses an address with a prefix length.
func sloppyPrefix(text string) (netip.Prefix, bool) {
	addr, length, _ := strings.Cut(text, "/")
	a, ok := sloppyAddr(addr)
	if !ok || strings.Contains(addr, ":") && a.Is4() {
		return netip.Prefix{}, false
	}
	if bits := strings.TrimLeft(length, "0"); bits != "" || length == "" {
		length = bits
	} else {
		length = "0"
	}
	p, err := netip.ParsePrefix(a.String() + "/" + length)
	return p, err == nil
}
