package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/internal/cidr"
)

// Limits of lists, as in the API. A longer list is refused unread.
const (
	maxRanges   = 64
	maxExcludes = 256
	maxGateways = 2
)

// parsedRange is one entry of ranges or excludes.
type parsedRange struct {
	first, last netip.Addr
	// bits is the prefix length of the link; the length of the address if none was
	// written.
	bits int
	// cidr is true for a CIDR, which has edges; first-last has none.
	cidr bool
	// index is the position in the list, text the entry as written.
	index int
	text  string
}

func (r parsedRange) family() Family     { return FamilyOf(r.first) }
func (r parsedRange) span() span         { return spanOf(r.first, r.last) }
func (r parsedRange) link() netip.Prefix { return netip.PrefixFrom(r.first, r.bits).Masked() }

// edges returns the addresses of a CIDR that no host may have: network and broadcast
// (RFC 1122 3.2.1.3; none in a /31, RFC 3021), or the subnet-router anycast address
// (RFC 4291 2.6.1; none in a /127, RFC 6164).
func (r parsedRange) edges() []span {
	switch {
	case !r.cidr || r.bits >= r.first.BitLen()-1:
		return nil
	case r.family() == IPv4:
		return []span{spanOf(r.first, r.first), spanOf(r.last, r.last)}
	default:
		return []span{spanOf(r.first, r.first)}
	}
}

// parser collects problems.
type parser struct {
	errs []error
	// partial is true if a range is unreadable. It is then unknown whether an address
	// lies in the ranges.
	partial bool
}

func (p *parser) report(field, value, format string, args ...any) {
	p.errs = append(p.errs, &FieldError{Field: field, Value: value, Problem: fmt.Sprintf(format, args...)})
}

// ParsePool checks and parses a spec. The error joins a *FieldError for every problem.
func ParsePool(spec PoolSpec) (*Pool, error) {
	var ps parser
	p := &Pool{
		name:     spec.Name,
		domain:   cmp.Or(spec.Domain, DefaultDomain),
		cooldown: cmp.Or(spec.Cooldown, DefaultCooldown),
		order:    cmp.Or(spec.Order, Fifo),
		perNode:  spec.PerNode,

		maxBlocks: cmp.Or(spec.MaxBlocksPerNode, DefaultMaxBlocksPerNode),
	}
	ps.domain(p.domain)
	if p.cooldown < MinCooldown || p.cooldown > MaxCooldown {
		ps.report("spec.cooldown", spec.Cooldown.String(), "must be between %s and %s: CNI plugins give an address back before the link is gone",
			MinCooldown, MaxCooldown)
	}
	if p.order != Fifo && p.order != Lowest {
		ps.report("spec.order", string(spec.Order), "must be %s or %s", Fifo, Lowest)
	}
	if p.maxBlocks < 0 {
		ps.report("spec.maxBlocksPerNode", strconv.Itoa(spec.MaxBlocksPerNode), "must be at least 1, or 0 for the default of %d", DefaultMaxBlocksPerNode)
	}
	ranges := ps.list("spec.ranges", spec.Ranges, maxRanges)
	if len(spec.Ranges) == 0 {
		ps.report("spec.ranges", "", "must have an entry: a CIDR as 10.0.0.0/24, first-last, or one address")
	}
	ps.partial = len(ranges) < len(spec.Ranges)
	ps.checkSpecial(ranges)
	ps.checkOverlaps("spec.ranges", ranges)
	excludes := ps.list("spec.excludes", spec.Excludes, maxExcludes)
	ps.checkOverlaps("spec.excludes", excludes)
	ps.checkExcludes(excludes, ranges)
	gateways := ps.gateways(spec.Gateways, ranges)
	if len(ps.errs) > 0 {
		return nil, errors.Join(ps.errs...)
	}
	for _, f := range []Family{IPv4, IPv6} {
		ps.fill(p.space(f), f, spec, ranges, excludes, gateways)
	}
	if len(ps.errs) > 0 {
		return nil, errors.Join(ps.errs...)
	}
	return p, nil
}

// fill computes the addresses that a valid pool hands out in family f.
func (ps *parser) fill(s *space, f Family, spec PoolSpec, ranges, excludes []parsedRange, gateways []netip.Addr) {
	var holes []span
	for _, e := range excludes {
		if e.family() == f {
			holes = append(holes, e.span())
		}
	}
	for _, g := range gateways {
		if FamilyOf(g) == f {
			s.gateway = g
			holes = append(holes, spanOf(g, g))
		}
	}
	for _, r := range ranges {
		if r.family() != f {
			continue
		}
		s.ranges = append(s.ranges, r)
		if !spec.UseEdges && !spec.PerNode {
			holes = append(holes, r.edges()...)
		}
	}
	holes = normalize(holes)
	for _, r := range s.ranges {
		s.allowed = append(s.allowed, r.span().subtract(holes)...)
	}
	s.allowed = normalize(s.allowed)
	s.available, s.runs = s.allowed, runsOf(s.allowed)
	if len(s.ranges) > 0 && len(s.allowed) == 0 {
		ps.report("spec.ranges", s.ranges[0].text,
			"leaves no %s address to hand out: excludes, gateway and edges take all of them", f)
	}
}

func (ps *parser) domain(name string) {
	if !validDomain(name) {
		ps.report("spec.domain", name,
			"is not a domain name: at most 63 lower-case letters, digits and inner hyphens, as in %q", "storage-net")
	}
}

func (ps *parser) list(field string, entries []string, limit int) []parsedRange {
	if len(entries) > limit {
		ps.report(field, strconv.Itoa(len(entries))+" entries", "are too many: at most %d", limit)
		return nil
	}
	var out []parsedRange
	for i, text := range entries {
		r, problem := parseRange(text)
		if problem != "" {
			ps.report(fmt.Sprintf("%s[%d]", field, i), text, "%s", problem)
			continue
		}
		r.index, r.text = i, text
		out = append(out, r)
	}
	return out
}

// checkOverlaps reports each entry that overlaps an earlier one, once.
func (ps *parser) checkOverlaps(field string, list []parsedRange) {
	for i, r := range list {
		k := slices.IndexFunc(list[:i], func(o parsedRange) bool {
			return o.family() == r.family() && o.span().overlaps(r.span())
		})
		if k >= 0 {
			ps.report(fmt.Sprintf("%s[%d]", field, r.index), r.text, "overlaps %s[%d] (%s): the entries must be apart",
				field, list[k].index, list[k].text)
		}
	}
}

// checkExcludes reports excludes outside the ranges.
func (ps *parser) checkExcludes(excludes, ranges []parsedRange) {
	for _, e := range excludes {
		var touched *parsedRange
		inside := false
		for i, r := range ranges {
			if r.family() != e.family() || !r.span().overlaps(e.span()) {
				continue
			}
			touched = &ranges[i]
			inside = inside || r.span().covers(e.span())
		}
		field := fmt.Sprintf("spec.excludes[%d]", e.index)
		switch {
		case inside || ps.partial:
		case touched != nil:
			ps.report(field, e.text, "reaches beyond spec.ranges[%d] (%s): write the part that lies in it, %s",
				touched.index, touched.text, intersection(e, *touched))
		default:
			ps.report(field, e.text, "lies in none of spec.ranges: remove it, or add the range")
		}
	}
}

func intersection(a, b parsedRange) string {
	first, last := a.first, a.last
	if first.Less(b.first) {
		first = b.first
	}
	if b.last.Less(last) {
		last = b.last
	}
	return first.String() + "-" + last.String()
}

func (ps *parser) gateways(texts []string, ranges []parsedRange) []netip.Addr {
	if len(texts) > maxGateways {
		ps.report("spec.gateways", strconv.Itoa(len(texts))+" entries", "are too many: at most one per family")
		return nil
	}
	var out []netip.Addr
	for i, text := range texts {
		field := fmt.Sprintf("spec.gateways[%d]", i)
		g, problem := parseAddr(text)
		if problem == "" {
			problem = ps.gatewayProblem(g, out, ranges)
		}
		if problem != "" {
			ps.report(field, text, "%s", problem)
			continue
		}
		out = append(out, g)
	}
	return out
}

func (ps *parser) gatewayProblem(g netip.Addr, others []netip.Addr, ranges []parsedRange) string {
	f := FamilyOf(g)
	for _, o := range others {
		if FamilyOf(o) == f {
			return fmt.Sprintf("is a second %s gateway beside %s: at most one per family", f, o)
		}
	}
	if what := specialIn(f, spanOf(g, g)); what != "" {
		return "is " + what + ", which cannot be a gateway"
	}
	var links []string
	for _, r := range ranges {
		if r.family() != f {
			continue
		}
		if r.link().Contains(g) {
			return ""
		}
		links = append(links, r.link().String())
	}
	if ps.partial {
		return ""
	}
	if len(links) == 0 {
		return fmt.Sprintf("has no %s range beside it: add one, or remove the gateway", f)
	}
	return fmt.Sprintf("is not on the link of an %s range (%s): name a gateway on it, or write the link's prefix length behind the range, as in 10.0.0.10-10.0.0.20/24",
		f, strings.Join(links, ", "))
}

// checkSpecial reports ranges with addresses that no interface may have.
func (ps *parser) checkSpecial(ranges []parsedRange) {
	for _, r := range ranges {
		if what := specialIn(r.family(), r.span()); what != "" {
			ps.report(fmt.Sprintf("spec.ranges[%d]", r.index), r.text, "contains %s: only unicast addresses can be handed out", what)
		}
	}
}

// specialIn describes the first special-purpose addresses in a span; empty if there are
// none.
func specialIn(f Family, s span) string {
	list := []struct{ cidr, what string }{
		{"0.0.0.0/32", "the unspecified address 0.0.0.0"},
		{"127.0.0.0/8", "loopback addresses (127.0.0.0/8)"},
		{"224.0.0.0/4", "multicast addresses (224.0.0.0/4)"},
		{"255.255.255.255/32", "the broadcast address 255.255.255.255"},
		{"::/128", "the unspecified address ::"},
		{"::1/128", "the loopback address ::1"},
		{"::ffff:0:0/96", "IPv4-mapped addresses (::ffff:0:0/96)"},
		{"ff00::/8", "multicast addresses (ff00::/8)"},
	}
	for _, e := range list {
		c := netip.MustParsePrefix(e.cidr)
		if FamilyOf(c.Addr()) == f && s.overlaps(spanOf(c.Addr(), cidr.Last(c))) {
			return e.what
		}
	}
	return ""
}

func parseRange(text string) (parsedRange, string) {
	first, rest, isRange := strings.Cut(text, "-")
	if !isRange {
		return parseCIDR(text)
	}
	last, length, hasLength := strings.Cut(rest, "/")
	r := parsedRange{}
	var problem string
	if r.first, problem = parseAddr(first); problem != "" {
		return r, "starts with " + strconv.Quote(first) + ", which " + problem
	}
	if r.last, problem = parseAddr(last); problem != "" {
		return r, "ends with " + strconv.Quote(last) + ", which " + problem
	}
	r.bits = r.first.BitLen()
	switch {
	case r.first.BitLen() != r.last.BitLen():
		return r, "mixes IPv4 and IPv6: write a range for each"
	case r.last.Less(r.first):
		return r, fmt.Sprintf("ends before it starts: write %s-%s", r.last, r.first)
	case !hasLength:
		return r, ""
	}
	if r.bits, problem = parseLength(length, r.first.BitLen()); problem != "" {
		return r, problem
	}
	if !r.link().Contains(r.last) {
		return r, fmt.Sprintf("does not fit on one /%d link: the prefix length must be %d or less", r.bits, commonBits(r.first, r.last))
	}
	return r, ""
}

// parseCIDR parses a CIDR or a single address.
func parseCIDR(text string) (parsedRange, string) {
	addr, length, isCIDR := strings.Cut(text, "/")
	a, problem := parseAddr(addr)
	if problem != "" {
		return parsedRange{}, problem
	}
	if !isCIDR {
		return parsedRange{first: a, last: a, bits: a.BitLen()}, ""
	}
	n, problem := parseLength(length, a.BitLen())
	if problem != "" {
		return parsedRange{}, problem
	}
	c := netip.PrefixFrom(a, n)
	if m := c.Masked(); m.Addr() != a {
		return parsedRange{}, fmt.Sprintf("has host bits set: write %s for the whole network, or %s-%s/%d for this address on it", m, a, a, n)
	}
	return parsedRange{first: a, last: cidr.Last(c), bits: n, cidr: true}, ""
}

func parseAddr(text string) (netip.Addr, string) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, "is not an IP address: write it as 10.0.0.1 or fd00::1, a network as 10.0.0.0/24, a range as 10.0.0.10-10.0.0.20"
	case a.Zone() != "":
		return a, "has a zone: write " + a.WithZone("").String()
	case a.Is4In6():
		return a, "is an IPv4-mapped IPv6 address: write " + a.Unmap().String()
	}
	return a, ""
}

func parseLength(text string, limit int) (int, string) {
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text || n < 1 || n > limit {
		return 0, fmt.Sprintf("has the prefix length %q: it must be a number from 1 to %d", text, limit)
	}
	return n, ""
}

// commonBits returns the length of the longest common prefix of two addresses of a
// family.
func commonBits(a, b netip.Addr) int {
	n := a.BitLen()
	for ; n > 0 && !netip.PrefixFrom(a, n).Contains(b); n-- {
	}
	return n
}

// validDomain checks the pattern of the API.
func validDomain(s string) bool {
	if len(s) < 1 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
