package cli

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// The marks of addresses in a map, and of their shares in a bar.
const (
	markFree     = '.'
	markUsed     = '#'
	markCooling  = '~'
	markHeld     = 'H'
	markReserved = 'x'
	markDamaged  = '?'
	markWithheld = '-'
	markOutside  = ' '
)

// mapView is the output of `pools NAME --map -o json`. Usable = free + allocated +
// cooling + held + reserved + damaged; counts stop at 2^63-1.
type mapView struct {
	Pool      string `json:"pool"`
	Domain    string `json:"domain"`
	Usable    int64  `json:"usable"`
	Free      int64  `json:"free"`
	Allocated int64  `json:"allocated"`
	Cooling   int64  `json:"cooling"`
	Held      int64  `json:"held"`
	Reserved  int64  `json:"reserved"`
	// Damaged addresses have a record that cannot be parsed. The pool's status counts
	// them as reserved.
	Damaged int64 `json:"damaged"`
	// Kept addresses are allocated or held, although the pool would no longer hand them
	// out. They do not count as usable.
	Kept int64 `json:"kept"`
	// Blocks that exist, by address.
	Blocks []mapBlock `json:"blocks"`
	// UntouchedBlocks counts the blocks that do not exist yet; all their addresses are
	// free or reserved.
	UntouchedBlocks int64 `json:"untouchedBlocks"`
}

// mapBlock is one block: 64 neighbouring addresses.
type mapBlock struct {
	CIDR string `json:"cidr"`
	// Node is the node to which the block is routed.
	Node string `json:"node,omitempty"`
	// Slots has one character per address, the first at the left.
	Slots string `json:"slots"`
}

// buildMap returns the map of a pool; an error names the fields of the pool's spec that
// cannot be parsed.
func buildMap(o *v1alpha1.IPPool, snap kube.Snapshot) (mapView, error) {
	all, err := block.PoolOf(o)
	if err != nil {
		return mapView{}, fmt.Errorf("pool %s cannot be drawn: %w", o.Name, err)
	}
	pool := all.Without(block.Reservations(snap.Reservations))
	v := mapView{Pool: o.Name, Domain: pool.Domain(), Blocks: []mapBlock{}}
	seen := map[rune]uint64{}
	var touched, drawn uint64
	usable, reserved := pool.Size(pool.Families()...)
	for _, b := range blocksOf(snap.Blocks, pool) {
		var slots strings.Builder
		for _, a := range ipam.Addrs(b.Prefix()) {
			m := markOf(all, pool, b, a, snap.Now)
			slots.WriteRune(m)
			switch {
			case all.Allows(a):
				seen[m]++
				drawn++
			case m == markUsed || m == markHeld:
				v.Kept++
			}
		}
		if pool.UsableIn(b.Prefix()) > 0 {
			touched++
		}
		reserved -= pool.ReservedIn(b.Prefix())
		v.Blocks = append(v.Blocks, mapBlock{CIDR: b.Prefix().String(), Node: b.Node(), Slots: slots.String()})
	}
	v.Usable, v.Free = signed(usable), signed(usable-drawn-reserved+seen[markFree])
	v.Allocated, v.Cooling, v.Held = signed(seen[markUsed]), signed(seen[markCooling]), signed(seen[markHeld])
	v.Reserved, v.Damaged = signed(reserved+seen[markReserved]), signed(seen[markDamaged])
	v.UntouchedBlocks = signed(all.Blocks() - touched)
	return v, nil
}

// blocksOf returns the blocks with an address in the ranges of a pool, by address. Blocks
// with an unparsable CIDR are skipped.
func blocksOf(blocks []v1alpha1.IPBlock, pool *ipam.Pool) []*ipam.Block {
	var out []*ipam.Block
	for i := range blocks {
		b, err := block.Decode(&blocks[i])
		if err == nil && blocks[i].Spec.Domain == pool.Domain() && slices.ContainsFunc(ipam.Addrs(b.Prefix()), pool.Covers) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *ipam.Block) int { return a.Prefix().Addr().Compare(b.Prefix().Addr()) })
	return out
}

// markOf returns the character of one address. all is the pool without its reservations.
func markOf(all, pool *ipam.Pool, b *ipam.Block, a netip.Addr, now time.Time) rune {
	slot, recorded := b.Slot(a)
	switch {
	case !all.Covers(a):
		return markOutside
	case recorded && slot.State == ipam.Taken:
		return markUsed
	case all.Allows(a) && !pool.Allows(a):
		return markReserved
	case recorded && slot.State == ipam.Held:
		return markHeld
	case recorded && slot.State == ipam.Damaged:
		return markDamaged
	case !all.Allows(a):
		return markWithheld
	case b.Cooling(pool, a, ipam.Moment{Wall: now}):
		return markCooling
	case !recorded && !b.Fresh(a):
		return markDamaged
	case pool.PerNode() != (b.Node() != ""):
		return markReserved // the pool does not use this block
	}
	return markFree
}

func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// mapText returns one row per block, and the legend with counts.
func mapText(v mapView) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool %s, domain %s: %s usable\n\n", v.Pool, v.Domain, count(v.Usable))
	width := 0
	for _, block := range v.Blocks {
		width = max(width, len(block.CIDR))
	}
	for _, block := range v.Blocks {
		line := fmt.Sprintf("%-*s   |%s|", width, block.CIDR, block.Slots)
		if block.Node != "" {
			line += "   " + block.Node
		}
		b.WriteString(line + "\n")
	}
	switch {
	case v.UntouchedBlocks == 1:
		b.WriteString("1 block untouched\n")
	case v.UntouchedBlocks > 1:
		fmt.Fprintf(&b, "%s blocks untouched\n", count(v.UntouchedBlocks))
	}
	b.WriteByte('\n')
	for _, l := range []struct {
		mark rune
		text string
		n    int64
	}{
		{markFree, "free", v.Free},
		{markUsed, "used", v.Allocated},
		{markCooling, "cooling", v.Cooling},
		{markHeld, "held for a claim", v.Held},
		{markReserved, "reserved", v.Reserved},
		{markDamaged, "damaged record", v.Damaged},
	} {
		fmt.Fprintf(&b, "%c   %-16s   %s\n", l.mark, l.text, count(l.n))
	}
	fmt.Fprintf(&b, "%c   excluded, the gateway, or an edge of a range\n", markWithheld)
	b.WriteString("blank: not of this pool\n")
	if v.Kept > 0 {
		fmt.Fprintf(&b, "%s in use or held that the pool would not hand out any more\n", output.Plural(int(v.Kept), "address"))
	}
	return b.String()
}
