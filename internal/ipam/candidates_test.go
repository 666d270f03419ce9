package ipam

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCandidatesArePermutation(t *testing.T) {
	tests := []struct {
		name string
		spec PoolSpec
		want int
	}{
		{"one", ranges("10.0.0.5"), 1},
		{"a /24", ranges("10.0.0.0/24"), 4},
		{"pieces of one block", ranges("10.0.0.1", "10.0.0.5-10.0.0.9", "10.0.0.60-10.0.0.70"), 2},
		{"excluded blocks", PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.0.64/26"}}, 3},
		{"a block of which only the edge is left", PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.0.192-10.0.0.254"}}, 3},
		{"IPv6", ranges("fd00::/112"), 1024},
		{"the most", ranges("10.0.0.0/10"), 65536},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPool(t, tt.spec)
			f := p.Families()[0]
			seen := map[netip.Prefix]bool{}
			for b := range p.Candidates(f, "node-1") {
				if seen[b] || b != BlockOf(b.Addr()) || p.UsableIn(b) == 0 {
					t.Fatalf("block %s is a repetition, no block, or has nothing", b)
				}
				seen[b] = true
			}
			if len(seen) != tt.want {
				t.Errorf("%d blocks, want %d", len(seen), tt.want)
			}
			for b := range p.Candidates(f, "node-1") {
				if !seen[b] {
					t.Errorf("block %s is not there when stopped early", b)
				}
				break
			}
		})
	}
}

// Nodes find their blocks again by this order. The test fails if the hash changes.
func TestCandidatesOrder(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.0/23"))
	order := func(p *Pool, node string) (out []string) {
		for b := range p.Candidates(IPv4, node) {
			out = append(out, b.String())
		}
		return out
	}
	want := []string{
		"10.0.1.192/26", "10.0.1.64/26", "10.0.0.64/26", "10.0.0.0/26",
		"10.0.0.128/26", "10.0.0.192/26", "10.0.1.0/26", "10.0.1.128/26",
	}
	if diff := cmp.Diff(want, order(p, "node-1")); diff != "" {
		t.Errorf("order for node-1 (-want +got):\n%s", diff)
	}
	// Rendezvous hashing: if a block is removed, the order of the others stays.
	less := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/23"}, Excludes: []string{"10.0.1.192/26"}})
	without := slices.DeleteFunc(order(p, "node-2"), func(s string) bool { return s == "10.0.1.192/26" })
	if diff := cmp.Diff(without, order(less, "node-2")); diff != "" {
		t.Errorf("order for node-2 (-with all +with one less):\n%s", diff)
	}
}

func TestCandidatesSpreadNodes(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.0/22"))
	first := map[netip.Prefix]int{}
	for i := range 1600 {
		for b := range p.Candidates(IPv4, "node-"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))) {
			first[b]++
			break
		}
	}
	for b, n := range first {
		if n < 50 || n > 150 {
			t.Errorf("%d of 1600 nodes prefer %s, want about 100", n, b)
		}
	}
	if len(first) != 16 {
		t.Errorf("%d blocks are preferred, want 16", len(first))
	}
}

func TestCandidatesOfHugePools(t *testing.T) {
	for _, spec := range []PoolSpec{
		ranges("fd00::/64"), ranges("2001:db8::/32"), ranges("10.0.0.0/8"),
		{Ranges: []string{"10.0.0.0/8"}, Excludes: []string{"10.0.0.0/9"}},
	} {
		p := mustPool(t, spec)
		f := p.Families()[0]
		seen := map[netip.Prefix]bool{}
		for b := range p.Candidates(f, "node-1") {
			if seen[b] || p.UsableIn(b) == 0 {
				t.Fatalf("%v: block %s is a repetition, or has nothing", spec.Ranges, b)
			}
			seen[b] = true
		}
		if len(seen) < exactBlocks || len(seen) > exactBlocks+probes {
			t.Errorf("%v: %d blocks", spec.Ranges, len(seen))
		}
	}
	// whereabouts#83, PR#165: half of a /64 was unreachable.
	upper := 0
	for b := range mustPool(t, ranges("fd00::/64")).Candidates(IPv6, "node-1") {
		if b.Addr().As16()[8] >= 0x80 {
			upper++
		}
	}
	if upper < probes/4 {
		t.Errorf("only %d probes lie in the upper half of the /64", upper)
	}
}

// With order Lowest the candidates begin with the lowest block, for every node.
func TestCandidatesOfLowest(t *testing.T) {
	for _, tt := range []struct {
		ranges []string
		blocks int
	}{
		{[]string{"10.0.1.0/24", "10.0.0.7-10.0.0.70", "10.0.0.200"}, 7},
		{[]string{"fd00::/64"}, exactBlocks},
		{[]string{"10.0.0.0/10", "10.128.0.0/10"}, exactBlocks},
	} {
		p := mustPool(t, PoolSpec{Ranges: tt.ranges, Order: Lowest})
		f := p.Families()[0]
		var last netip.Prefix
		n := 0
		for b := range p.Candidates(f, "node-"+tt.ranges[0]) {
			if n++; last.IsValid() && !last.Addr().Less(b.Addr()) || !p.HandsOut(b) {
				t.Fatalf("%v: %s comes after %s", tt.ranges, b, last)
			}
			last = b
		}
		if n != tt.blocks {
			t.Errorf("%v: %d blocks, want %d", tt.ranges, n, tt.blocks)
		}
		for b := range p.Candidates(f, "node-1") {
			if b != BlockOf(p.space(f).available[0].first.addr(f)) {
				t.Errorf("%v: begins with %s", tt.ranges, b)
			}
			break
		}
	}
}
