package ipam

import (
	"testing"
)

func BenchmarkTake(b *testing.B) {
	p := mustPool(b, ranges("10.0.0.0/16"))
	hs := make([]Holder, 64)
	for i := range hs {
		hs[i] = holder(i)
	}
	empty := newBlock("10.0.1.0/26")
	blk := empty.Clone()
	now := t0()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%64 == 0 {
			*blk = *empty
		}
		if _, err := blk.Take(p, hs[i%64], false, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	blk := fullBlock(b)
	b.ReportAllocs()
	for b.Loop() {
		blk.Encode()
	}
}

func BenchmarkDecode(b *testing.B) {
	slots := fullBlock(b).Encode()
	prefix := newBlock("10.0.1.0/26").Prefix()
	b.ReportAllocs()
	for b.Loop() {
		DecodeBlock(prefix, "", slots)
	}
}

func fullBlock(b *testing.B) *Block {
	b.Helper()
	p := mustPool(b, ranges("10.0.0.0/16"))
	blk := newBlock("10.0.1.0/26")
	for i := range 64 {
		if _, err := blk.Take(p, holder(i), false, t0()); err != nil {
			b.Fatal(err)
		}
	}
	return blk
}

func BenchmarkCandidates(b *testing.B) {
	for _, bb := range []struct {
		name  string
		cidr  string
		first int
	}{
		{"first of 4", "10.0.0.0/24", 1},
		{"first of 1600", "10.0.0.0-10.1.143.255", 1},
		{"all of 1600", "10.0.0.0-10.1.143.255", 1600},
		{"first of 65536", "10.0.0.0/10", 1},
		{"first 10 of a v6 64", "fd00::/64", 10},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := mustPool(b, ranges(bb.cidr))
			f := p.Families()[0]
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for range p.Candidates(f, "node-1") {
					if n++; n == bb.first {
						break
					}
				}
			}
		})
	}
}
