package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// t0 is when the tests start. It is not a whole millisecond.
func t0() Moment {
	return Moment{Wall: time.UnixMilli(1_753_000_000_000).Add(300 * time.Microsecond)}
}

func holder(i int) Holder {
	return Holder{
		PodUID: fmt.Sprintf("9b2e6f4e-1a2b-4c3d-8e9f-%012d", i), Interface: "eth0",
		Namespace: "default", Pod: fmt.Sprintf("web-%d", i), Node: "node-1",
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func newBlock(cidr string) *Block { return NewBlock(netip.MustParsePrefix(cidr), "") }

func TestTakeOrder(t *testing.T) {
	tests := []struct {
		name  string
		order Order
		// free lists holders that free, one second apart; then is the time from the
		// last free to the next take.
		free []int
		then time.Duration
		want string
	}{
		{"fifo: never used first", Fifo, []int{0}, time.Hour, "10.0.0.4"},
		{"lowest: rested", Lowest, []int{2, 1}, time.Hour, "10.0.0.1"},
		{"lowest: not rested", Lowest, []int{1}, 29999 * time.Millisecond, "10.0.0.4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := ranges("10.0.0.0-10.0.0.9")
			spec.Order = tt.order
			p, b, now := mustPool(t, spec), newBlock("10.0.0.0/26"), t0()
			got := map[int]netip.Addr{}
			for i := range 4 {
				got[i], _ = b.Take(p, holder(i), false, now)
			}
			for _, i := range tt.free {
				now = now.Add(time.Second)
				if !b.Free(holder(i), got[i], now) {
					t.Fatalf("holder %d does not have %s", i, got[i])
				}
			}
			a, err := b.Take(p, holder(9), false, now.Add(tt.then))
			if err != nil || a != addr(tt.want) {
				t.Errorf("Take() = %v, %v, want %s", a, err, tt.want)
			}
		})
	}
}

func TestFifoIsByTimeFreed(t *testing.T) {
	p, b, now := mustPool(t, ranges("10.0.0.0-10.0.0.3")), newBlock("10.0.0.0/26"), t0()
	for i := range 4 {
		if _, err := b.Take(p, holder(i), false, now); err != nil {
			t.Fatal(err)
		}
	}
	var want, got []string
	for _, i := range []int{2, 0, 3, 1} {
		now = now.Add(time.Second)
		a, _ := b.Find(holder(i))
		b.Free(holder(i), a, now)
		want = append(want, a.String())
	}
	b = DecodeBlock(b.Prefix(), "", b.Encode())
	now = now.Add(time.Hour)
	for i := range 4 {
		a, err := b.Take(p, holder(10+i), false, now)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, a.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of reuse (-want +got):\n%s", diff)
	}
}

func TestCooldown(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.1"}, Cooldown: time.Minute})
	b, now := newBlock("10.0.0.0/26"), t0()
	if _, err := b.Take(p, holder(1), false, now); err != nil {
		t.Fatal(err)
	}
	b.Free(holder(1), addr("10.0.0.1"), now)
	tests := []struct {
		after            time.Duration
		take, early, own bool
	}{
		{0, false, false, false},
		// The time of the free was rounded up to the next millisecond.
		{MinCooldown, false, false, false},
		{MinCooldown + time.Millisecond, false, true, true},
		{time.Minute, false, true, true},
		{time.Minute + time.Millisecond, true, true, true},
		{-time.Hour, false, false, false},
	}
	for _, tt := range tests {
		at := now.Add(tt.after)
		_, err := b.Clone().Take(p, holder(2), false, at)
		_, early := b.Clone().Take(p, holder(2), true, at)
		own := b.Clone().TakeAddr(p, holder(2), addr("10.0.0.1"), "", at)
		if (err == nil) != tt.take || (early == nil) != tt.early || (own == nil) != tt.own {
			t.Errorf("after %s: Take: %v, early: %v, TakeAddr: %v; want %+v", tt.after, err, early, own, tt)
		}
		if got := b.Eligible(p, at, false) == 1; got != tt.take {
			t.Errorf("after %s: Eligible() = %v", tt.after, got)
		}
		if got := b.Eligible(p, at, true) == 1; got != tt.early {
			t.Errorf("after %s: Eligible(early) = %v", tt.after, got)
		}
		if got := b.Idle(at, time.Minute); got != tt.take {
			t.Errorf("after %s: Idle() = %v", tt.after, got)
		}
	}
}

// own review 1: a holder is a pod's interface, identified by namespace, name and UID.
func TestHolderIsAll(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.0/26"))
	for name, change := range map[string]func(*Holder){
		"UID":       func(h *Holder) { h.PodUID = "9b2e6f4e-1a2b-4c3d-8e9f-000000000002" },
		"namespace": func(h *Holder) { h.Namespace = "other" },
		"name":      func(h *Holder) { h.Pod = "other" },
		"interface": func(h *Holder) { h.Interface = "net1" },
	} {
		b := newBlock("10.0.0.0/26")
		a, err := b.Take(p, holder(1), false, t0())
		if err != nil {
			t.Fatal(err)
		}
		other := holder(1)
		change(&other)
		if holder(1).Same(other) || b.Free(other, a, t0()) {
			t.Errorf("another %s is the same holder", name)
		}
		if got, err := b.Take(p, other, false, t0()); err != nil || got == a {
			t.Errorf("another %s: Take() = %v, %v", name, got, err)
		}
		if err := b.TakeAddr(p, other, a, "", t0()); err == nil {
			t.Errorf("another %s: it is given what the first has", name)
		}
	}
}

func TestTakeIsIdempotent(t *testing.T) {
	wide := mustPool(t, ranges("10.0.0.0/26"))
	b := newBlock("10.0.0.0/26")
	a, err := b.Take(wide, holder(1), false, t0())
	if err != nil {
		t.Fatal(err)
	}
	before := b.Encode()
	moved := holder(1)
	moved.Node = "node-2" // the node is not part of the identity
	// An address that is excluded later stays with its holder.
	narrow := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, Excludes: []string{a.String()}})
	for _, p := range []*Pool{wide, narrow} {
		again, err := b.Take(p, moved, false, t0().Add(time.Hour))
		if err != nil || again != a {
			t.Errorf("second Take() = %v, %v, want %s", again, err, a)
		}
		if err := b.TakeAddr(p, moved, a, "", t0()); err != nil {
			t.Errorf("TakeAddr of the own address: %v", err)
		}
	}
	if diff := cmp.Diff(before, b.Encode()); diff != "" {
		t.Errorf("taking again changed the block (-before +after):\n%s", diff)
	}
	elsewhere := mustPool(t, ranges("10.0.0.32/27"))
	if other, err := b.Take(elsewhere, holder(1), false, t0()); err != nil || !elsewhere.Allows(other) {
		t.Errorf("Take from another pool = %v, %v", other, err)
	}
	second := holder(1)
	second.Interface = "net1"
	if other, err := b.Take(wide, second, false, t0()); err != nil || other == a {
		t.Errorf("Take for another interface = %v, %v", other, err)
	}
}

func TestTakeAddrNamesHolder(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, Excludes: []string{"10.0.0.9"}})
	b := DecodeBlock(netip.MustParsePrefix("10.0.0.0/26"), "", []string{
		"3 H 1 1753000000000 StatefulSet/ns/web-0", "4 A nonsense",
	})
	if _, err := b.Take(p, holder(1), false, t0()); err != nil {
		t.Fatal(err)
	}
	b.Free(holder(7), addr("10.0.0.1"), t0())
	tests := []struct {
		addr string
		// want is nil if the error is a *TakenError.
		want error
		text string
	}{
		{"10.0.0.1", nil, "10.0.0.1 is held by default/web-1/eth0 (uid 9b2e6f4e-1a2b-4c3d-8e9f-000000000001, node node-1)"},
		{"10.0.0.3", nil, "is kept for a claim of others"},
		{"10.0.0.4", nil, "withheld"},
		{"10.0.0.9", ErrNotAllowed, "excluded"},
		{"10.0.0.0", ErrNotAllowed, "edge"},
		{"10.0.0.70", ErrNotAllowed, "not in block"},
	}
	for _, tt := range tests {
		err := b.TakeAddr(p, holder(2), addr(tt.addr), "", t0())
		var taken *TakenError
		if errors.As(err, &taken) != (tt.want == nil) || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("TakeAddr(%s) = %v, want %s", tt.addr, err, tt.text)
		}
	}
}

// A user who requests an unavailable address learns nothing of other namespaces.
// Operators do.
func TestTakenErrorTellsNothingOfOthers(t *testing.T) {
	in := func(namespace string) Holder {
		return Holder{PodUID: "9b2e6f4e", Interface: "eth0", Namespace: namespace, Pod: "db-0", Node: "node-7"}
	}
	secret := []string{"shop", "db-0", "9b2e6f4e", "node-7", "web-0"}
	for _, tc := range []struct {
		name  string
		err   TakenError
		text  string
		hides bool
	}{
		{"a pod of another namespace", TakenError{Asker: in("evil"), Holder: in("shop")}, "is held by another pod", true},
		{"a pod of an unknown namespace", TakenError{Asker: in("evil"), Holder: in("")}, "is held by another pod", true},
		{"a claim of another namespace", TakenError{Asker: in("evil"), Claim: "shop/web-0"}, "is kept for a claim of others", true},
		{"a pod of her own", TakenError{Asker: in("shop"), Holder: in("shop")}, "is held by shop/db-0/eth0 (uid 9b2e6f4e, node node-7)", false},
		{"a claim of her own", TakenError{Asker: in("shop"), Claim: "shop/web-0"}, "is kept for claim shop/web-0", false},
		{"no holder", TakenError{Asker: in("evil"), Reason: "was released less than 5s ago"}, "was released less than 5s ago", true},
	} {
		tc.err.Addr = addr("10.0.0.1")
		if got := tc.err.Error(); got != "10.0.0.1 "+tc.text {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.text)
		}
		for _, s := range secret {
			if tc.hides && strings.Contains(tc.err.Error(), s) {
				t.Errorf("%s: %q tells %s", tc.name, tc.err.Error(), s)
			}
		}
		if tc.err.Holder.Namespace == "shop" && !strings.Contains(tc.err.Detail(), "shop/db-0") || tc.err.Claim != "" && !strings.Contains(tc.err.Detail(), "shop/web-0") {
			t.Errorf("%s: operators read %q", tc.name, tc.err.Detail())
		}
	}
}

func TestHolderValidate(t *testing.T) {
	long := strings.Repeat("a", 254)
	tests := []struct {
		name string
		edit func(*Holder)
		text string
	}{
		{"good", func(*Holder) {}, ""},
		{"no names", func(h *Holder) { h.Namespace, h.Pod, h.Node = "", "", "" }, ""},
		{"interface of signs", func(h *Holder) { h.Interface = "a:b@c_d-e.f" }, ""},
		{"no UID", func(h *Holder) { h.PodUID = "" }, "pod UID is empty"},
		{"no interface", func(h *Holder) { h.Interface = "" }, "interface is empty"},
		{"long interface", func(h *Holder) { h.Interface = "eth0123456789012" }, "at most 15"},
		{"slash in the interface", func(h *Holder) { h.Interface = "a/b" }, "'/'"},
		{"blank in the UID", func(h *Holder) { h.PodUID = "a b" }, "' '"},
		{"slash in the pod", func(h *Holder) { h.Pod = "a/b" }, "'/'"},
		{"line break in the node", func(h *Holder) { h.Node = "a\n" }, `'\n'`},
		{"not ASCII", func(h *Holder) { h.Node = "nöde" }, "node name"},
		{"dash for none", func(h *Holder) { h.Node = "-" }, "stands for none"},
		{"long pod", func(h *Holder) { h.Pod = long }, "at most 253"},
		{"the longest names", func(h *Holder) { h.Namespace, h.Pod, h.Node = long[:63], long[1:], long[1:] }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, b, h := mustPool(t, ranges("10.0.0.0/26")), newBlock("10.0.0.0/26"), holder(1)
			tt.edit(&h)
			_, err := b.Take(p, h, false, t0())
			if tt.text == "" {
				if err != nil {
					t.Fatal(err)
				}
				back := DecodeBlock(b.Prefix(), "", b.Encode())
				if s, _ := back.Slot(addr("10.0.0.1")); s.Holder != h {
					t.Errorf("decoded holder %+v, want %+v", s.Holder, h)
				}
				return
			}
			if !errors.Is(err, ErrBadHolder) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Take() = %v, want %s", err, tt.text)
			}
			if !errors.Is(b.TakeAddr(p, h, addr("10.0.0.1"), "", t0()), ErrBadHolder) || len(b.Encode()) > 0 {
				t.Error("the holder was written down")
			}
		})
	}
}

func TestSlotLength(t *testing.T) {
	p, b := mustPool(t, ranges("10.0.0.0/26")), newBlock("10.0.0.0/26")
	h := holder(1)
	h.Pod = "web-7d4b9c6f5d-x2x4k"
	if _, err := b.Take(p, h, false, t0()); err != nil {
		t.Fatal(err)
	}
	want := []string{"1 A 1 1753000000001 9b2e6f4e-1a2b-4c3d-8e9f-000000000001 default/web-7d4b9c6f5d-x2x4k/eth0 node-1"}
	if diff := cmp.Diff(want, b.Encode()); diff != "" || len(want[0]) > 100 {
		t.Errorf("slot of %d bytes (-want +got):\n%s", len(want[0]), diff)
	}
}

func TestDecodeQuarantines(t *testing.T) {
	const good = "5 A 1 1753000000000 uid-5 ns/pod/eth0 node"
	tests := []struct {
		name  string
		slots []string
		// want is the result of Encode; slots if nil.
		want []string
		// reserved are the ordinals that are withheld.
		reserved []int
		// room is how many addresses get no record, because the surplus records need
		// the room in the object.
		room int
		// all is true if every address without a record is withheld.
		all bool
	}{
		{name: "good", slots: []string{good}},
		{name: "sorted", slots: []string{good, "3 F 2 1753000000000"}, want: []string{"3 F 2 1753000000000", good}},
		{name: "held", slots: []string{"7 H 1 0 VM/ns/vm1"}},
		{name: "taken with a claim", slots: []string{good + " ns/web-0"}},
		{name: "freed, with the last holder", slots: []string{"7 F 2 1753000009000 uid ns/pod/eth0 node 1753000000000"}},
		{name: "freed, with a holder and no time", slots: []string{"7 F 2 1753000009000 uid ns/pod/eth0 node -"}, reserved: []int{7}},
		{name: "taken, with a past", slots: []string{good + " uid-4 ns/pod/eth0 node 1 2 uid-3 -/-/eth0 - 0 1"}},
		{name: "taken with a claim and a past", slots: []string{good + " ns/web-0 uid-4 ns/pod/eth0 node 1 2"}},
		{name: "held, with a past", slots: []string{"7 H 1 0 VM/ns/vm1 uid-4 ns/pod/eth0 node 1 2"}},
		{name: "freed, with a past", slots: []string{"7 F 2 9 uid ns/pod/eth0 node 1 uid-4 ns/pod/eth0 node 1 2", "8 F 2 9 uid-4 ns/pod/eth0 node 1 2"}},
		{name: "more of a past than is written now", slots: []string{"7 F 2 9" + strings.Repeat(" uid ns/pod/eth0 node 1 2", 5)}},
		{name: "a past without its end", slots: []string{good + " uid-4 ns/pod/eth0 node 1"}, reserved: []int{5}},
		{name: "a past with a bad holder", slots: []string{good + " uid-4 ns/pod node 1 2"}, reserved: []int{5}},
		{name: "a past with a time in another notation", slots: []string{good + " uid-4 ns/pod/eth0 node 1 02"}, reserved: []int{5}},
		{name: "a past beyond the length of a string", slots: []string{"5 F 2 9" + strings.Repeat(" uid ns/pod/eth0 node 1 2", 50)}, reserved: []int{5}},
		{name: "unknown state", slots: []string{"5 X 1 0"}, reserved: []int{5}},
		{name: "long state", slots: []string{"5 AF 1 0"}, reserved: []int{5}},
		{name: "ordinal only", slots: []string{"5"}, reserved: []int{5}},
		{name: "generation 0", slots: []string{"5 F 0 0"}, reserved: []int{5}},
		{name: "generation overflow", slots: []string{"5 F 18446744073709551615 0"}, reserved: []int{5}},
		{name: "generation with a sign", slots: []string{"5 F +1 0"}, reserved: []int{5}},
		{name: "time below zero", slots: []string{"5 F 1 -1"}, reserved: []int{5}},
		{name: "time in another notation", slots: []string{"5 F 1 007"}, reserved: []int{5}},
		{name: "no uid", slots: []string{"5 A 1 0  ns/pod/eth0 node"}, reserved: []int{5}},
		{name: "no interface", slots: []string{"5 A 1 0 uid ns/pod node"}, reserved: []int{5}},
		{name: "too many fields", slots: []string{good + " claim more"}, reserved: []int{5}},
		{name: "blank at the end", slots: []string{good + " "}, reserved: []int{5}},
		{name: "freed with a holder", slots: []string{strings.Replace(good, " A ", " F ", 1)}, reserved: []int{5}},
		{name: "duplicate", slots: []string{good, "5 F 2 0"}, reserved: []int{5}, room: 1},
		{name: "same twice", slots: []string{good, good}, reserved: []int{5}, room: 1},
		{name: "three times, one unreadable", slots: []string{"5 ?", good, good}, reserved: []int{5}, room: 2},
		{name: "ordinal with a zero", slots: []string{"05 F 1 0"}, all: true},
		{name: "ordinal 64", slots: []string{"64 F 1 0"}, all: true},
		{name: "ordinal below zero", slots: []string{"-1 F 1 0"}, all: true},
		{name: "empty", slots: []string{""}, all: true},
		{name: "garbage beside a freed one", slots: []string{"3 F 1 0", "\xff\xfe"}, all: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, UseEdges: true})
			b := DecodeBlock(netip.MustParsePrefix("10.0.0.0/26"), "", tt.slots)
			want := tt.want
			if want == nil {
				want = tt.slots
			}
			if diff := cmp.Diff(want, b.Encode()); diff != "" {
				t.Errorf("Encode (-want +got):\n%s", diff)
			}
			counts := b.Counts(p, t0())
			if !tt.all && counts.Reserved != uint64(len(tt.reserved)+tt.room) {
				t.Errorf("counts %v, want %d reserved", counts, len(tt.reserved))
			}
			free := 0
			for i := 0; ; i++ {
				a, err := b.Take(p, holder(i), false, t0())
				if err != nil {
					break
				}
				free++
				for _, r := range tt.reserved {
					if ord, _ := b.ordinal(a); ord == r {
						t.Errorf("%s is handed out", a)
					}
				}
			}
			if uint64(free) != counts.Free {
				t.Errorf("%d could be taken, counts were %v", free, counts)
			}
			if tt.all && free > 1 {
				t.Errorf("%d were handed out beside a record without an ordinal", free)
			}
			if n := len(b.Encode()); n > 64 && len(tt.slots) <= 64 {
				t.Errorf("%d records, the object takes 64", n)
			}
		})
	}
}

func TestBlockAccessors(t *testing.T) {
	b := DecodeBlock(netip.MustParsePrefix("10.0.0.64/26"), "node-1", []string{
		"0 A 7 1753000000000 uid ns/pod/eth0 node-1", "1 F 2 0", "2 H 1 1000 key", "3 ?", "x",
		"4 A 1 2000 uid ns/pod/net1 node-1 key", "5 F 4 3000 uid ns/pod/net2 node-1 2000",
	})
	if b.Node() != "node-1" || b.Prefix().String() != "10.0.0.64/26" || b.Used() != 5 {
		t.Errorf("node %s, prefix %s, used %d", b.Node(), b.Prefix(), b.Used())
	}
	want := []Slot{
		{Ordinal: 0, Addr: addr("10.0.0.64"), State: Taken, Generation: 7, Since: time.UnixMilli(1753000000000), Holder: Holder{"uid", "eth0", "ns", "pod", "node-1"}},
		{Ordinal: 1, Addr: addr("10.0.0.65"), State: Freed, Generation: 2},
		{Ordinal: 2, Addr: addr("10.0.0.66"), State: Held, Generation: 1, Since: time.UnixMilli(1000), Claim: "key"},
		{Ordinal: 3, Addr: addr("10.0.0.67"), State: Damaged},
		{Ordinal: 4, Addr: addr("10.0.0.68"), State: Taken, Generation: 1, Since: time.UnixMilli(2000), Holder: Holder{"uid", "net1", "ns", "pod", "node-1"}, Claim: "key"},
		{
			Ordinal: 5, Addr: addr("10.0.0.69"), State: Freed, Generation: 4, Since: time.UnixMilli(3000),
		},
	}
	var got []Slot
	for s := range b.Slots() {
		got = append(got, s)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	for range b.Slots() {
		break
	}
	if _, ok := b.Slot(addr("10.0.0.70")); ok {
		t.Error("a slot that was never used has a record")
	}
	if _, ok := b.Slot(addr("10.0.1.68")); ok {
		t.Error("an address of another block has a record")
	}
	if b.Free(holder(1), addr("10.0.0.64"), t0()) || b.Free(holder(1), addr("10.9.0.64"), t0()) {
		t.Error("freed what the holder does not have")
	}
}

// TestFreedSlotsRememberTheirHolder: a freed slot has its last holder after encoding
// and decoding, and a block has at most 8 KB.
func TestFreedSlotsRememberTheirHolder(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, UseEdges: true})
	b := newBlock("10.0.0.0/26")
	h := Holder{"0f8fad5b-d9cb-469f-a165-70867728950e", "eth0", "production", "checkout-7c9d8f6b54-x2v9q", "worker-17"}
	for ord := range 64 {
		if err := b.TakeAddr(p, h, b.addr(ord), "", t0()); err != nil {
			t.Fatal(err)
		}
	}
	until := t0().Add(time.Hour)
	for ord := range 64 {
		b.Free(h, b.addr(ord), until)
	}
	size := 0
	for _, s := range b.Encode() {
		size += len(s) + len(`"",`)
	}
	if size > 8<<10 {
		t.Errorf("a block of freed slots has %d bytes", size)
	}
	back := DecodeBlock(b.Prefix(), "", b.Encode())
	// Times are rounded up.
	past := Past{Holder: h, Since: time.UnixMilli(t0().Wall.UnixMilli() + 1), Until: time.UnixMilli(until.Wall.UnixMilli() + 1)}
	if diff := cmp.Diff([]Past{past}, back.History(addr("10.0.0.7"))); diff != "" {
		t.Errorf("remembers (-want +got):\n%s", diff)
	}
}
