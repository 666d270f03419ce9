package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const machineClaim = "ns/vm1"

// launcher returns the i-th launcher of a virtual machine, on a node of its own.
func launcher(i int) Holder {
	return Holder{PodUID: fmt.Sprintf("uid-%d", i), Interface: "eth0", Namespace: "ns", Pod: fmt.Sprintf("virt-launcher-vm1-%d", i), Node: fmt.Sprintf("node-%d", i)}
}

// heldBy returns a block in which the first launcher has 10.0.0.1 for the claim.
func heldBy(t *testing.T, first Holder) (*Block, netip.Addr) {
	t.Helper()
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/28"}, UseEdges: true})
	b, a := newBlock("10.0.0.0/26"), addr("10.0.0.1")
	if err := errors.Join(b.TakeAddr(p, first, a, machineClaim, t0()), b.Keep(first, a, machineClaim)); err != nil {
		t.Fatal(err)
	}
	return b, a
}

func holdersOf(s Slot) (out []string) {
	for h := range s.Holders() {
		out = append(out, h.PodUID)
	}
	return out
}

// TestJoin: the second launcher of a machine gets the address of the first at once, and
// no other pod does.
func TestJoin(t *testing.T) {
	other := launcher(1)
	other.Namespace = "other"
	sameNode := launcher(1)
	sameNode.Node = launcher(0).Node
	cases := []struct {
		name  string
		h     Holder
		first Holder
		claim string
		// joined is a launcher that has joined before; zero for none.
		joined Holder
		want   []string
		taken  string
	}{
		{name: "the second launcher", h: launcher(1), first: launcher(0), claim: machineClaim, want: []string{"uid-0", "uid-1"}},
		{name: "the first again", h: launcher(0), first: launcher(0), claim: machineClaim, want: []string{"uid-0"}},
		{name: "the second again", h: launcher(1), first: launcher(0), claim: machineClaim, joined: launcher(1), want: []string{"uid-0", "uid-1"}},
		{name: "a third", h: launcher(2), first: launcher(0), claim: machineClaim, joined: launcher(1), want: []string{"uid-0", "uid-1"}, taken: "and by ns/virt-launcher-vm1-1"},
		{name: "a third beside the second", h: launcher(2), first: launcher(1), claim: machineClaim, joined: launcher(1), want: []string{"uid-0", "uid-1"}, taken: "and by"},
		{name: "beside a pod that has it no more", h: launcher(1), first: launcher(5), claim: machineClaim, want: []string{"uid-0"}, taken: "held by ns/virt-launcher-vm1-0"},
		{name: "for another claim", h: launcher(1), first: launcher(0), claim: "ns/vm2", want: []string{"uid-0"}, taken: "held by"},
		{name: "without a claim", h: launcher(1), first: launcher(0), want: []string{"uid-0"}, taken: "held by"},
		{name: "of another namespace", h: other, first: launcher(0), claim: machineClaim, want: []string{"uid-0"}, taken: "held by"},
		{name: "on the same node", h: sameNode, first: launcher(0), claim: machineClaim, want: []string{"uid-0"}, taken: "held by"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			b, a := heldBy(t, launcher(0))
			if tc.joined != (Holder{}) {
				if err := b.Join(tc.joined, launcher(0), a, machineClaim, t0()); err != nil {
					t.Fatal(err)
				}
			}
			before := b.Encode()
			err := b.Join(tc.h, tc.first, a, tc.claim, t0())
			taken, refused := errors.AsType[*TakenError](err)
			if refused != (tc.taken != "") || refused && !strings.Contains(taken.Detail(), tc.taken) {
				t.Errorf("error %v, want one with %q", err, tc.taken)
			}
			if diff := cmp.Diff(before, b.Encode()); refused && diff != "" {
				t.Errorf("a refused join changed the block (-before +after):\n%s", diff)
			}
			if s, _ := b.Slot(a); !slices.Equal(holdersOf(s), tc.want) {
				t.Errorf("the holders are %v, want %v", holdersOf(s), tc.want)
			}
		})
	}
	b, _ := heldBy(t, launcher(0))
	if err := b.Join(launcher(1), launcher(0), addr("10.9.9.9"), machineClaim, t0()); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("outside the block: %v", err)
	}
	if err := b.Join(Holder{}, launcher(0), addr("10.0.0.1"), machineClaim, t0()); !errors.Is(err, ErrBadHolder) {
		t.Errorf("an invalid holder: %v", err)
	}
	if err := b.Join(launcher(1), launcher(0), addr("10.0.0.9"), machineClaim, t0()); err == nil {
		t.Error("an address without a holder was joined")
	}
}

// TestEitherLauncherEnds: whichever launcher ends first, the other keeps the address, and
// the claim has it after both. An ended holding is remembered.
func TestEitherLauncherEnds(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		b, a := heldBy(t, launcher(0))
		if err := b.Join(launcher(1), launcher(0), a, machineClaim, t0().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		ends, stays := launcher(order[0]), launcher(order[1])
		ends.Node = "" // only the identity matters
		if !b.Free(ends, a, t0().Add(2*time.Second)) || b.Free(ends, a, t0().Add(2*time.Second)) {
			t.Fatalf("order %v: it cannot give the address back once", order)
		}
		s, _ := b.Slot(a)
		want := Slot{Ordinal: 1, Addr: a, State: Taken, Holder: stays, Since: s.Since, Generation: s.Generation, Claim: machineClaim}
		if diff := cmp.Diff(want, s, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("order %v: -want +got:\n%s", order, diff)
		}
		if since := t0().Wall.Add(time.Duration(order[1]) * time.Second); s.Since.Sub(since) < 0 || s.Since.Sub(since) > time.Millisecond {
			t.Errorf("order %v: it has the address since %v, want %v", order, s.Since, since)
		}
		if past := b.History(a); len(past) != 1 || past[0].Holder.Pod != ends.Pod || past[0].Holder.Node == "" {
			t.Errorf("order %v: the history is %+v", order, past)
		}
		if !b.Free(stays, a, t0().Add(3*time.Second)) {
			t.Fatalf("order %v: the other cannot give it back", order)
		}
		if s, _ := b.Slot(a); s.State != Held || s.Claim != machineClaim || len(b.History(a)) != 2 {
			t.Errorf("order %v: after both it is %+v, with %v", order, s, b.History(a))
		}
	}
}

// oldVersion decodes a slot as versions did that know no second holder: they quarantine a
// record with a letter that they do not know.
func oldVersion(text string) State {
	switch f := strings.Split(text, " "); State(f[1][0]) {
	case Taken, Freed, Held:
		return State(f[1][0])
	default:
		return Damaged
	}
}

// A version without second holders never hands out a shared address: it cannot read the
// record. When one launcher has ended it reads the record as before.
func TestSharedSlotAndOldVersions(t *testing.T) {
	b, a := heldBy(t, launcher(0))
	plain := b.Encode()[0]
	if err := b.Join(launcher(1), launcher(0), a, machineClaim, t0()); err != nil {
		t.Fatal(err)
	}
	if text := b.Encode()[0]; oldVersion(text) != Damaged || oldVersion(plain) != Taken {
		t.Errorf("an old version reads %q", text)
	}
	b.Free(launcher(1), a, t0())
	if text := b.Encode()[0]; oldVersion(text) != Taken {
		t.Errorf("an old version cannot read %q", text)
	}
}

// Names that do not fit into one record are refused, and change nothing.
func TestSharedSlotIsTooLong(t *testing.T) {
	long := func(i int) Holder {
		h := launcher(i)
		h.Node = strings.Repeat("n", 251) + fmt.Sprint("-", i)
		h.Pod = strings.Repeat("p", 200) + fmt.Sprint(i)
		return h
	}
	b, a := heldBy(t, long(0))
	if err := b.Join(long(1), long(0), a, machineClaim, t0()); err != nil {
		t.Fatalf("names of %d characters: %v", 253+201, err)
	}
	longer := func(i int) Holder {
		h := long(i)
		h.Pod = strings.Repeat("p", 252) + fmt.Sprint(i)
		return h
	}
	b, a = heldBy(t, longer(0))
	if err := b.Join(longer(1), longer(0), a, machineClaim, t0()); err == nil || !strings.Contains(err.Error(), "1024 characters") {
		t.Errorf("the longest names: %v", err)
	}
}

// TestLostSharedRecord: a pod does not get the address of a record that never had both
// (make sim SEED=11).
func TestLostSharedRecord(t *testing.T) {
	b, a := heldBy(t, launcher(0))
	if _, err := b.Restore(launcher(1), a, machineClaim, t0()); err == nil {
		t.Error("a pod got the address of another")
	}
}

// TestSharedModel does random operations of the launchers of two machines. An address has
// one holder or two of one claim, a holder loses it only by its own Free, and a block that
// is encoded and decoded is the same.
func TestSharedModel(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/30"}, UseEdges: true, Cooldown: MinCooldown})
	claims := []string{"ns/vm1", "ns/vm2"}
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		b, now := newBlock("10.0.0.0/26"), t0()
		model := map[netip.Addr][]string{}
		for range 500 {
			now = now.Add(time.Duration(rnd.Int64N(int64(time.Second))))
			n := rnd.IntN(8)
			h, claim, a := launcher(n), claims[n%2], b.addr(rnd.IntN(4))
			switch rnd.IntN(3) {
			case 0:
				if b.TakeAddr(p, h, a, claim, now) == nil {
					_ = b.Keep(h, a, claim)
					if !slices.Contains(model[a], h.PodUID) {
						model[a] = append(model[a], h.PodUID)
					}
				}
			case 1:
				if b.Join(h, launcher((n+2)%8), a, claim, now) == nil && !slices.Contains(model[a], h.PodUID) {
					model[a] = append(model[a], h.PodUID)
				}
			default:
				if b.Free(h, a, now) != slices.Contains(model[a], h.PodUID) {
					t.Fatalf("seed %d: Free(%s, %s) of %v", seed, h, a, model[a])
				}
				model[a] = slices.DeleteFunc(model[a], func(uid string) bool { return uid == h.PodUID })
			}
			if rnd.IntN(4) == 0 {
				back := DecodeBlock(b.Prefix(), b.Node(), b.Encode())
				if back.slots != b.slots {
					t.Fatalf("seed %d: the block is another after a round trip: %q", seed, b.Encode())
				}
				b = back
			}
			for a, want := range model {
				s, _ := b.Slot(a)
				if got := holdersOf(s); !slices.Equal(got, want) || len(want) > 2 {
					t.Fatalf("I1, seed %d: %s has the holders %v, want %v", seed, a, got, want)
				}
				if len(want) == 2 && (want[0][4]-'0')%2 != (want[1][4]-'0')%2 {
					t.Fatalf("I1, seed %d: two machines share %s: %v", seed, a, want)
				}
			}
			if c := b.Counts(p, now); c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved {
				t.Fatalf("I7, seed %d: %v", seed, c)
			}
		}
	}
}
