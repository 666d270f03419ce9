package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// model is a simple model of a block, for comparison.
type model struct {
	holders map[netip.Addr]Holder
	freed   map[netip.Addr]Moment
	gens    map[netip.Addr]uint64
}

// TestModel does random operations from two overlapping pools on one block, with and
// without encoding and decoding. After each step it checks that an address has one
// holder (I1), is freed by its holder only (I4), that generations grow (I5), that no
// excluded address is taken (I6), and that the counts add up (I7).
func TestModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			pools := []*Pool{
				mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/27"}, Gateways: []string{"10.0.0.1"}, Cooldown: 20 * time.Second}),
				mustPool(t, PoolSpec{
					Ranges: []string{"10.0.0.16-10.0.0.40"}, Excludes: []string{"10.0.0.20/30"},
					Order: Lowest, Cooldown: 40 * time.Second,
				}),
			}
			b, now := newBlock("10.0.0.0/26"), t0()
			m := &model{map[netip.Addr]Holder{}, map[netip.Addr]Moment{}, map[netip.Addr]uint64{}}
			for range 600 {
				now = now.Add(time.Duration(rnd.Int64N(int64(1500 * time.Millisecond))))
				m.step(t, rnd, b, pools[rnd.IntN(2)], now)
				if rnd.IntN(4) == 0 {
					back := DecodeBlock(b.Prefix(), b.Node(), b.Encode())
					if diff := cmp.Diff(b.Encode(), back.Encode()); diff != "" {
						t.Fatalf("round trip (-before +after):\n%s", diff)
					}
					b = back
				}
				for _, p := range pools {
					m.check(t, b, p, now)
				}
			}
		})
	}
}

func (m *model) step(t *testing.T, rnd *rand.Rand, b *Block, p *Pool, now Moment) {
	t.Helper()
	h := holder(rnd.IntN(50))
	any := b.addr(rnd.IntN(64))
	switch rnd.IntN(5) {
	case 0, 1:
		early := rnd.IntN(2) == 0
		rest := p.Cooldown()
		if early {
			rest = MinCooldown
		}
		a, err := b.Take(p, h, early, now)
		if errors.Is(err, ErrFull) {
			m.full(t, p, now, rest)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		m.took(t, p, h, a, now, rest)
	case 2:
		err := b.TakeAddr(p, h, any, "", now)
		if err == nil {
			m.took(t, p, h, any, now, MinCooldown)
		} else if m.available(p, any, now, MinCooldown) {
			t.Fatalf("TakeAddr(%s): %v, but it is free", any, err)
		}
	default:
		has, held := m.holders[any]
		got := b.Free(h, any, now)
		if got != (held && has.Same(h)) {
			t.Fatalf("Free(%v, %s) = %v, the holder is %v", h, any, got, has)
		}
		if got {
			delete(m.holders, any)
			m.freed[any] = now
		}
		// Most addresses are freed by their holders.
		for a, h := range m.holders {
			if rnd.IntN(8) == 0 {
				if !b.Free(h, a, now) {
					t.Fatalf("Free(%v, %s) = false", h, a)
				}
				delete(m.holders, a)
				m.freed[a] = now
			}
		}
	}
}

// available reports whether the address is free in the model.
func (m *model) available(p *Pool, a netip.Addr, now Moment, rest time.Duration) bool {
	_, held := m.holders[a]
	freed, cooling := m.freed[a]
	// The tolerance is a millisecond, since times are rounded to the safe side.
	return p.Allows(a) && !held && (!cooling || now.Wall.Sub(freed.Wall) >= rest+2*time.Millisecond)
}

func (m *model) full(t *testing.T, p *Pool, now Moment, rest time.Duration) {
	t.Helper()
	for a := addr("10.0.0.0"); a != addr("10.0.0.64"); a = a.Next() {
		if m.available(p, a, now, rest) {
			t.Fatalf("full, but %s is free", a)
		}
	}
}

func (m *model) took(t *testing.T, p *Pool, h Holder, a netip.Addr, now Moment, rest time.Duration) {
	t.Helper()
	was, held := m.holders[a]
	if held && was.Same(h) {
		return
	}
	if held {
		t.Fatalf("I1: %s is given to %v and held by %v", a, h, was)
	}
	if !p.Allows(a) {
		t.Fatalf("I6: %s is taken and not allowed", a)
	}
	if freed, ok := m.freed[a]; ok && now.Wall.Sub(freed.Wall) < rest {
		t.Fatalf("%s is taken %s after it was freed", a, now.Wall.Sub(freed.Wall))
	}
	m.holders[a] = h
	delete(m.freed, a)
}

func (m *model) check(t *testing.T, b *Block, p *Pool, now Moment) {
	t.Helper()
	taken := 0
	for s := range b.Slots() {
		if s.Generation < m.gens[s.Addr] {
			t.Fatalf("I5: the generation of %s went from %d to %d", s.Addr, m.gens[s.Addr], s.Generation)
		}
		if _, held := m.holders[s.Addr]; held != (s.State == Taken) {
			t.Fatalf("I4: %s is %c, held in the model: %v", s.Addr, s.State, held)
		}
		if s.State == Taken {
			taken++
			if !m.holders[s.Addr].Same(s.Holder) {
				t.Fatalf("I1: %s is held by %v, in the model by %v", s.Addr, s.Holder, m.holders[s.Addr])
			}
		}
		m.gens[s.Addr] = s.Generation
	}
	if taken != len(m.holders) {
		t.Fatalf("I1: %d are taken, %d in the model", taken, len(m.holders))
	}
	c := b.Counts(p, now)
	if c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved || c.Usable != p.UsableIn(b.Prefix()) {
		t.Fatalf("I7: %v", c)
	}
	if int(c.Free) != b.Eligible(p, now, false) {
		t.Fatalf("%d eligible, counts %v", b.Eligible(p, now, false), c)
	}
}

// TestFillToTheLast takes every address of unusual ranges, none twice and no other.
func TestFillToTheLast(t *testing.T) {
	for _, spec := range []PoolSpec{
		ranges("10.0.0.0/24"), ranges("10.0.0.0/31"), ranges("10.0.0.9/32"), ranges("fd00::/127"), ranges("fd00::9/128"), ranges("10.0.0.7"), ranges("10.0.0.61-10.0.0.67"),
		ranges("10.0.0.0-10.0.0.0", "10.0.0.63-10.0.0.64", "10.0.1.255"), ranges("fd00::/119"), ranges("fd00::3f-fd00::80"),
		{Ranges: []string{"10.0.0.0/25", "fd00::/126"}, Excludes: []string{"10.0.0.1", "10.0.0.64/28", "fd00::2-fd00::3"}, Gateways: []string{"10.0.0.126"}},
		{Ranges: []string{"10.0.0.0/25"}, UseEdges: true, Order: Lowest},
		{Ranges: []string{"10.0.0.0/25"}, PerNode: true},
	} {
		t.Run(fmt.Sprint(spec.Ranges), func(t *testing.T) {
			p := mustPool(t, spec)
			taken := map[netip.Addr]bool{}
			for _, f := range p.Families() {
				for block := range p.Candidates(f, "node") {
					b := NewBlock(block, "")
					for {
						a, err := b.Take(p, holder(len(taken)), false, t0())
						if errors.Is(err, ErrFull) {
							break
						}
						if err != nil || taken[a] || !p.Allows(a) {
							t.Fatalf("Take() = %v, %v, taken before: %v", a, err, taken[a])
						}
						taken[a] = true
					}
				}
			}
			if uint64(len(taken)) != p.Usable() {
				t.Errorf("%d taken, %d usable", len(taken), p.Usable())
			}
		})
	}
}
