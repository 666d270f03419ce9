package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// remembered is a holding as History returns it after the address has had another
// holder: times are rounded up, and the UID is cut.
func remembered(h Holder, since, until time.Time) Past {
	h.PodUID = h.PodUID[:8]
	return Past{Holder: h, Since: time.UnixMilli(ceilMillis(since)), Until: time.UnixMilli(ceilMillis(until))}
}

// TestHistoryOutlivesTheNextHolder: an address in use has a record of its previous
// holders, with and without a claim, and also after the holding for the claim has
// ended.
func TestHistoryOutlivesTheNextHolder(t *testing.T) {
	p, a := mustPool(t, ranges("10.0.0.7")), addr("10.0.0.7")
	b := newBlock("10.0.0.0/26")
	at := func(hours int) Moment { return t0().Add(time.Duration(hours) * time.Hour) }
	through := func() { b = DecodeBlock(b.Prefix(), "", b.Encode()) }
	var want []Past
	check := func(when string) {
		t.Helper()
		through()
		if diff := cmp.Diff(want, b.History(a)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	for i := range 2 {
		if err := b.TakeAddr(p, holder(i), a, "", at(2*i)); err != nil {
			t.Fatal(err)
		}
		check("taken again")
		b.Free(holder(i), a, at(2*i+1))
		want = append([]Past{remembered(holder(i), at(2*i).Wall, at(2*i+1).Wall)}, want...)
	}
	if err := b.TakeAddr(p, holder(2), a, "", at(4)); err != nil {
		t.Fatal(err)
	}
	if err := b.Keep(holder(2), a, "ns/web-0"); err != nil {
		t.Fatal(err)
	}
	check("kept")
	b.Free(holder(2), a, at(5))
	want = append([]Past{remembered(holder(2), at(4).Wall, at(5).Wall)}, want...)
	check("held")
	if err := b.TakeAddr(p, holder(3), a, "ns/web-0", at(6)); err != nil {
		t.Fatal(err)
	}
	want = want[:maxHoldings-1]
	check("taken for the claim")
	b.Free(holder(3), a, at(7))
	b.Unhold("ns/web-0", a, at(7).Wall, at(8))
	want = append([]Past{remembered(holder(3), at(6).Wall, at(7).Wall)}, want...)
	check("no longer held")
	if b.History(addr("10.0.0.8")) != nil || b.History(addr("10.9.9.9")) != nil {
		t.Error("an address without a holder has a history")
	}
}

// TestHistoryModel does random operations and compares the history with all that
// happened: it has the newest holdings, as many as there is room for.
func TestHistoryModel(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/30"}, UseEdges: true, Cooldown: MinCooldown})
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			b, now := newBlock("10.0.0.0/26"), t0()
			all := map[netip.Addr][]Past{}
			for range 300 {
				now = now.Add(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				a := b.addr(rnd.IntN(4))
				before, _ := b.Slot(a)
				w := wish{holder(rnd.IntN(20)), a, []string{"", "ns/a"}[rnd.IntN(2)]}
				if err := heldOperation(b, p, w, rnd.IntN(5), now); err != nil {
					t.Fatal(err)
				}
				if after, _ := b.Slot(a); before.State == Taken && after.State != Taken {
					all[a] = append([]Past{remembered(before.Holder, before.Since, now.Wall)}, all[a]...)
				}
				if rnd.IntN(4) == 0 {
					b = DecodeBlock(b.Prefix(), b.Node(), b.Encode())
				}
				checkHistory(t, b, a, all[a])
			}
		})
	}
}

func checkHistory(t *testing.T, b *Block, a netip.Addr, all []Past) {
	t.Helper()
	s, _ := b.Slot(a)
	keep := maxHoldings
	if s.State == Taken {
		keep--
	}
	got := b.History(a)
	// If the address has had no holder since, the whole UID is known.
	if len(got) > 0 {
		got[0].Holder.PodUID = got[0].Holder.PodUID[:8]
	}
	want := all[:min(keep, len(all))]
	if diff := cmp.Diff(append([]Past{}, want...), append([]Past{}, got...)); diff != "" {
		t.Fatalf("%s, %c (-want +got):\n%s", a, s.State, diff)
	}
}

// TestHistoryMakesRoom: with names of any length the slot's string is within the limit
// of the API; the oldest holdings are dropped.
func TestHistoryMakesRoom(t *testing.T) {
	p, a := mustPool(t, ranges("10.0.0.7")), addr("10.0.0.7")
	for _, n := range []int{1, 20, 60, 100, 150, 200, 253} {
		b, now := newBlock("10.0.0.0/26"), t0()
		h := holder(1)
		h.Pod, h.Node = strings.Repeat("p", n), strings.Repeat("n", n)
		for range 2 * maxHoldings {
			if err := b.TakeAddr(p, h, a, "ns/"+strings.Repeat("c", n), now); err != nil {
				t.Fatal(err)
			}
			if err := b.Keep(h, a, "ns/"+strings.Repeat("c", n)); err != nil {
				t.Fatal(err)
			}
			for _, text := range b.Encode() {
				if len(text) > maxSlotLength {
					t.Errorf("names of %d: a slot of %d bytes", n, len(text))
				}
			}
			now = now.Add(time.Hour)
			b.Free(h, a, now)
			now = now.Add(time.Hour)
			if back := DecodeBlock(b.Prefix(), "", b.Encode()); back.slots != b.slots || back.Used() != 1 {
				t.Errorf("names of %d: the block is another after a round trip", n)
			}
		}
		if had := len(b.History(a)); n <= 60 && had != maxHoldings || n > 60 && had < 1 {
			t.Errorf("names of %d: remembers %d holdings", n, had)
		}
	}
}

// TestHistorySize checks the size that docs/user/cli.md states.
func TestHistorySize(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, UseEdges: true})
	b, now := newBlock("10.0.0.0/26"), t0()
	h := Holder{"0f8fad5b-d9cb-469f-a165-70867728950e", "eth0", "production", "checkout-7c9d8f6b54-x2v9q", "worker-17"}
	var sizes []int
	for range maxHoldings {
		for ord := range 64 {
			if err := b.TakeAddr(p, h, b.addr(ord), "", now); err != nil {
				t.Fatal(err)
			}
		}
		size := 0
		for _, s := range b.Encode() {
			size += len(s) + len(`"",`)
		}
		sizes = append(sizes, size)
		now = now.Add(time.Hour)
		for ord := range 64 {
			b.Free(h, b.addr(ord), now)
		}
		now = now.Add(time.Hour)
	}
	for i := 1; i < len(sizes); i++ {
		if each := (sizes[i] - sizes[i-1]) / 64; each > 90 {
			t.Errorf("a holding that has ended costs %d bytes: %v", each, sizes)
		}
	}
	t.Logf("a full block has %d bytes, by holdings that are remembered", sizes)
}
