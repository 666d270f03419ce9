package ipam

import (
	"cmp"
	"iter"
	"math/bits"
	"net/netip"
)

const (
	// exactBlocks is the largest number of blocks for which a pool's candidates are an
	// exact permutation.
	exactBlocks = 1 << 16
	// probes is how many blocks of a larger pool are tried by hash before the lowest
	// ones.
	probes = 256
)

// Candidates yields the blocks of a family that have addresses to hand out, in the
// node's order of preference. The order is rendezvous hashing: nodes spread over the
// blocks, keep their preferences over time, and own nothing. Of a pool with more than
// 65,536 blocks it yields 256 that the hash chooses and then the 65,536 lowest, so an
// IPv6 /64 costs no more than a large IPv4 pool.
//
// With order Lowest nodes have no preferences: it yields the lowest 65,536 blocks in
// ascending order.
func (p *Pool) Candidates(f Family, node string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		runs, total := p.blocks(f)
		if p.order == Lowest {
			ascend(runs, func(b num) bool { return yield(blockPrefix(f, b)) })
			return
		}
		seed := hashString(node)
		if total > exactBlocks {
			probe(runs, total, seed, func(b num) bool { return yield(blockPrefix(f, b)) })
			return
		}
		h := make(ranking, 0, total)
		for _, r := range runs {
			for i := range r.n {
				b := r.base.add(num{lo: i})
				h = append(h, ranked{score: mix(seed ^ mix(b.hi*golden+b.lo)), block: b})
			}
		}
		h.init()
		for len(h) > 0 {
			if !yield(blockPrefix(f, h.pop())) {
				return
			}
		}
	}
}

func (p *Pool) blocks(f Family) ([]blockRun, uint64) {
	s := p.space(f)
	var total uint64
	for _, r := range s.runs {
		total = addSaturating(total, r.n)
	}
	return s.runs, total
}

func ascend(runs []blockRun, yield func(num) bool) {
	left := uint64(exactBlocks)
	for _, r := range runs {
		n := min(r.n, left)
		for i := range n {
			if !yield(r.base.add(num{lo: i})) {
				return
			}
		}
		left -= n
	}
}

func probe(runs []blockRun, total, seed uint64, yield func(num) bool) {
	tried := make(map[uint64]bool, probes)
	for k := range uint64(probes) {
		// The high half of the product is uniform in [0, total).
		i, _ := bits.Mul64(mix(seed+k*golden), total)
		if tried[i] {
			continue
		}
		tried[i] = true
		if !yield(blockAt(runs, i)) {
			return
		}
	}
	for i := range uint64(exactBlocks) {
		if !tried[i] && !yield(blockAt(runs, i)) {
			return
		}
	}
}

// blockAt returns the i-th block of the runs; i is less than their sum.
func blockAt(runs []blockRun, i uint64) num {
	for _, r := range runs {
		if i < r.n {
			return r.base.add(num{lo: i})
		}
		i -= r.n
	}
	return num{}
}

func blockPrefix(f Family, b num) netip.Prefix {
	a := b.shl6().addr(f)
	return netip.PrefixFrom(a, a.BitLen()-6)
}

// golden is 2^64 divided by the golden ratio, the step of splitmix64.
const golden = 0x9e3779b97f4a7c15

// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014). A node's preferences
// must not change between releases, so no library hash is used.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashString is FNV-1a, followed by mix.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// ranked is a block with its score for one node.
type ranked struct {
	score uint64
	block num
}

// ranking is a heap with the highest score first. Most callers need only the first few
// of many blocks: building a heap takes linear time, sorting does not.
type ranking []ranked

func (h ranking) before(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].score, h[i].score), h[i].block.cmp(h[j].block)) < 0
}

func (h ranking) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *ranking) pop() num {
	old := *h
	top, n := old[0].block, len(old)-1
	old[0] = old[n]
	*h = old[:n]
	h.down(0)
	return top
}

func (h ranking) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.before(c+1, c) {
			c++
		}
		if !h.before(c, i) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
