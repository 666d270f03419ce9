package ipam

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"fairlead.dev/fairlead/internal/cidr"
)

// PoolSpec is the spec of a pool as written by an operator, like that of an IPPool.
type PoolSpec struct {
	// Name of the pool, for error texts.
	Name string
	// Domain that the pool is a filter over; default DefaultDomain.
	Domain string
	// Ranges are CIDRs, first-last, first-last/length, or single addresses.
	Ranges []string
	// Excludes are never handed out. They have the same forms.
	Excludes []string
	// Gateways, at most one per family, are never handed out.
	Gateways []string
	// UseEdges hands out network, broadcast and subnet-router addresses too.
	UseEdges bool
	// Cooldown is between MinCooldown and MaxCooldown; default DefaultCooldown.
	Cooldown time.Duration
	// Order is Fifo when empty.
	Order Order
	// PerNode gives each node whole blocks, which are routed to it.
	PerNode bool
	// MaxBlocksPerNode is how many blocks of each family a node may have of a PerNode
	// pool; default DefaultMaxBlocksPerNode.
	MaxBlocksPerNode int
}

// DefaultMaxBlocksPerNode is 8 blocks, or 512 addresses. A node usually runs at most
// 250 pods, which need 4 blocks. Another 4 are enough to replace all of the pods at
// once while the old addresses cool down.
const DefaultMaxBlocksPerNode = 8

// FieldError is one problem of a pool's spec.
type FieldError struct {
	// Field is the path in the API: spec.ranges[1].
	Field string
	// Value is the value of the field.
	Value string
	// Problem names the mistake and the accepted values, as the end of a sentence.
	Problem string
}

// Error joins field, value and problem.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %q %s", e.Field, e.Value, e.Problem)
}

// Pool is a parsed PoolSpec: a filter over the addresses of a domain. It is immutable,
// and safe for concurrent use.
type Pool struct {
	name     string
	domain   string
	cooldown time.Duration
	order    Order
	perNode  bool
	// maxBlocks is how many blocks of each family a node may have.
	maxBlocks int
	v4, v6    space
}

// space is the part of a pool in one family.
type space struct {
	ranges  []parsedRange
	gateway netip.Addr
	// allowed is ranges without excludes, gateway and edges: sorted, without overlaps.
	allowed []span
	// available is allowed without reservations. runs are the blocks of available.
	available []span
	runs      []blockRun
}

// Name returns the name of the pool.
func (p *Pool) Name() string { return p.name }

// Domain returns the domain of the pool.
func (p *Pool) Domain() string { return p.domain }

// PerNode reports whether each node has blocks of its own.
func (p *Pool) PerNode() bool { return p.perNode }

// MaxBlocksPerNode returns how many blocks of each family a node may have of a PerNode
// pool.
func (p *Pool) MaxBlocksPerNode() int { return p.maxBlocks }

// Cooldown returns how long a released address is not handed out.
func (p *Pool) Cooldown() time.Duration { return p.cooldown }

// Order returns the order in which free addresses are handed out.
func (p *Pool) Order() Order { return p.order }

func (p *Pool) space(f Family) *space {
	if f == IPv4 {
		return &p.v4
	}
	return &p.v6
}

// Ranges returns the ranges as they were written.
func (p *Pool) Ranges() []string {
	var out []string
	for _, r := range slices.Concat(p.v4.ranges, p.v6.ranges) {
		out = append(out, r.text)
	}
	return out
}

// Families returns the families of the pool, IPv4 first.
func (p *Pool) Families() []Family {
	var out []Family
	for _, f := range []Family{IPv4, IPv6} {
		if len(p.space(f).ranges) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// Gateway returns the gateway of a family, if the pool has one.
func (p *Pool) Gateway(f Family) (netip.Addr, bool) {
	g := p.space(f).gateway
	return g, g.IsValid()
}

// Networks returns the networks that the ranges of a family consist of: together they have
// the same addresses.
func (p *Pool) Networks(f Family) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range p.space(f).ranges {
		out = append(out, cidr.Between(r.first, r.last)...)
	}
	return out
}

// rangeOf returns the range that an address lies in.
func (p *Pool) rangeOf(a netip.Addr) (parsedRange, bool) {
	n := numOf(a)
	for _, r := range p.space(FamilyOf(a)).ranges {
		if r.span().contains(n) {
			return r, true
		}
	}
	return parsedRange{}, false
}

// Covers reports whether an address lies in a range of the pool, also if it is
// excluded: an address that is excluded later stays with its holder.
func (p *Pool) Covers(a netip.Addr) bool {
	_, ok := p.rangeOf(a)
	return ok
}

// Prefix returns the address with the prefix length of its link, which is the length of
// the CIDR or the one behind first-last. It is the full length of the address if the
// range has none, in a PerNode pool, and outside the ranges.
func (p *Pool) Prefix(a netip.Addr) netip.Prefix {
	if r, ok := p.rangeOf(a); ok && !p.perNode {
		return netip.PrefixFrom(a, r.bits)
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// Usable returns the number of addresses that may be handed out, of both families, at
// most math.MaxInt64.
func (p *Pool) Usable() uint64 {
	return addSaturating(p.UsableOf(IPv4), p.UsableOf(IPv6))
}

// UsableOf is Usable for one family.
func (p *Pool) UsableOf(f Family) uint64 {
	var n uint64
	for _, s := range p.space(f).allowed {
		n = addSaturating(n, s.size())
	}
	return n
}

// UsableIn is Usable for one block.
func (p *Pool) UsableIn(block netip.Prefix) uint64 {
	return uint64(bits.OnesCount64(p.usableMask(block)))
}

// Allows reports whether an address may be handed out: it lies in a range and is not
// excluded, reserved, the gateway or an edge.
func (p *Pool) Allows(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	return anyContains(p.space(FamilyOf(a)).available, numOf(a))
}

// HandsOut reports whether the pool may hand out an address of a block.
func (p *Pool) HandsOut(block netip.Prefix) bool { return p.mask(block) != 0 }

// mask has a bit for each ordinal of a block that the pool may hand out.
func (p *Pool) mask(block netip.Prefix) uint64 {
	return maskOf(p.space(FamilyOf(block.Addr())).available, block)
}

// usableMask is mask plus the reserved addresses.
func (p *Pool) usableMask(block netip.Prefix) uint64 {
	return maskOf(p.space(FamilyOf(block.Addr())).allowed, block)
}

// anyContains reports whether a span contains n. The spans are sorted and do not
// overlap.
func anyContains(spans []span, n num) bool {
	i, _ := slices.BinarySearchFunc(spans, n, func(s span, n num) int { return s.last.cmp(n) })
	return i < len(spans) && spans[i].contains(n)
}

// maskOf has a bit for each ordinal of a block that lies in the spans, which are sorted
// and do not overlap.
func maskOf(allowed []span, block netip.Prefix) uint64 {
	first := numOf(block.Addr())
	all := span{first, first.add(num{lo: slotsPerBlock - 1})}
	i, _ := slices.BinarySearchFunc(allowed, first, func(s span, n num) int { return s.last.cmp(n) })
	var m uint64
	for ; i < len(allowed) && allowed[i].overlaps(all); i++ {
		from, to := uint64(0), uint64(slotsPerBlock-1)
		if all.first.cmp(allowed[i].first) < 0 {
			from = allowed[i].first.sub(first).lo
		}
		if allowed[i].last.cmp(all.last) < 0 {
			to = allowed[i].last.sub(first).lo
		}
		m |= ^uint64(0) >> (slotsPerBlock - 1 - (to - from)) << from
	}
	return m
}
