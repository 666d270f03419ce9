package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestHeldModel does random operations with claims, with and without encoding and
// decoding. An address has one holder (I1), a held address goes only to the next holder
// with its claim, and the counts add up (I7).
func TestHeldModel(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/28"}, UseEdges: true, Cooldown: MinCooldown})
	claims := []string{"", "ns/a", "ns/b"}
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			b, now := newBlock("10.0.0.0/26"), t0()
			for range 500 {
				now = now.Add(time.Duration(rnd.Int64N(int64(time.Second))))
				h, a, claim := holder(rnd.IntN(20)), b.addr(rnd.IntN(16)), claims[rnd.IntN(3)]
				before, _ := b.Slot(a)
				if err := heldOperation(b, p, wish{h, a, claim}, rnd.IntN(5), now); err != nil {
					t.Fatal(err)
				}
				after, _ := b.Slot(a)
				switch {
				case before.State == Taken && after.State == Taken && !before.Holder.Same(after.Holder):
					t.Fatalf("I1: %s went from %s to %s", a, before.Holder, after.Holder)
				case before.State == Held && after.State == Taken && (claim != before.Claim || after.Claim != before.Claim):
					t.Fatalf("%s was held for %s, and is taken with %q for %q", a, before.Claim, claim, after.Claim)
				case before.State == Taken && before.Claim != "" && after.State == Freed:
					t.Fatalf("%s was of claim %s, and is free", a, before.Claim)
				case before.State == Held && after.State == Freed && claim != before.Claim:
					t.Fatalf("%s was held for %s, and claim %q ended it", a, before.Claim, claim)
				case after.Generation < before.Generation:
					t.Fatalf("the generation of %s went from %d to %d", a, before.Generation, after.Generation)
				}
				if rnd.IntN(4) == 0 {
					back := DecodeBlock(b.Prefix(), b.Node(), b.Encode())
					if back.slots != b.slots {
						t.Fatalf("the block is another after a round trip: %q", b.Encode())
					}
					b = back
				}
				if c := b.Counts(p, now); c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved {
					t.Fatalf("I7: %v", c)
				}
			}
		})
	}
}

type wish struct {
	h     Holder
	a     netip.Addr
	claim string
}

// heldOperation performs an operation of some kind. A full block or a taken address is
// no error.
func heldOperation(b *Block, p *Pool, w wish, kind int, now Moment) error {
	switch kind {
	case 0:
		got, err := b.Take(p, w.h, false, now)
		if err == nil && w.claim != "" {
			err = b.Keep(w.h, got, w.claim)
		}
		if errors.Is(err, ErrFull) {
			return nil
		}
		return err
	case 1:
		err := b.TakeAddr(p, w.h, w.a, w.claim, now)
		if taken := (*TakenError)(nil); errors.As(err, &taken) {
			return nil
		}
		return err
	case 2:
		s, _ := b.Slot(w.a)
		b.Unhold(w.claim, w.a, s.Since, now)
	default:
		if s, ok := b.Slot(w.a); ok && s.State == Taken && !b.Free(s.Holder, w.a, now) {
			return fmt.Errorf("%s cannot free %s", s.Holder, w.a)
		}
	}
	return nil
}

func TestKeep(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.0/26"))
	b := newBlock("10.0.0.0/26")
	a, err := b.Take(p, holder(1), false, t0())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "two words", strings.Repeat("n", maxClaim+1)} {
		if err := b.Keep(holder(1), a, bad); !errors.Is(err, ErrBadClaim) {
			t.Errorf("Keep with the key %q: %v", bad, err)
		}
	}
	for _, keep := range []struct {
		h     Holder
		a     netip.Addr
		claim string
		want  string
	}{
		{holder(2), a, "ns/other", ""},            // another holder
		{holder(1), addr("10.9.9.9"), "ns/x", ""}, // outside the block
		{holder(1), a, "ns/a", "ns/a"},            // its holder
		{holder(1), a, "ns/b", "ns/a"},            // has a claim already
		{holder(1), a.Next(), "ns/a", "ns/a"},     // not taken
	} {
		if err := b.Keep(keep.h, keep.a, keep.claim); err != nil {
			t.Error(err)
		}
		if s, _ := b.Slot(a); s.Claim != keep.want {
			t.Errorf("after Keep(%s, %s, %s) the claim is %q, want %q", keep.h, keep.a, keep.claim, s.Claim, keep.want)
		}
	}
}

// TestLongestSlot: the longest names that Kubernetes allows, with a claim, fit into the
// string of a slot.
func TestLongestSlot(t *testing.T) {
	long := strings.Repeat("n", 253)
	h := Holder{strings.Repeat("u", 64), strings.Repeat("i", 15), strings.Repeat("n", 63), long, long}
	for _, s := range []slot{
		{state: Taken, gen: maxGeneration, at: maxTime, holder: h, claim: strings.Repeat("n", 63) + "/" + long},
		{state: Freed, gen: maxGeneration, at: maxTime, holder: h, since: maxTime},
		{state: Held, gen: maxGeneration, at: maxTime, claim: strings.Repeat("n", 63) + "/" + long},
		{state: Freed, gen: maxGeneration, at: maxTime, past: encodePast(h, maxTime, maxTime)},
	} {
		text := s.encode(63)
		ord, back, ok := decodeSlot(text)
		if !ok || ord != 63 || back != s {
			t.Errorf("%c: %d bytes, at most %d are possible", s.state, len(text), maxSlotLength)
		}
	}
}
