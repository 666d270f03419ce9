package ipam

// Defects of other projects, each as it was reported or reproduced. They must not occur
// here.

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// whereabouts#393, #403: offset 18446463705355360228 in a /24. A record of one family
// was read with the base of the other, and the whole pool was rewritten without the
// records that did not fit.
func TestWhereabouts393OffsetUnderflow(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/24", "fd00::/120"}})
	b := newBlock("10.0.0.64/26")
	for _, a := range []string{"10.0.0.63", "10.0.0.128", "fd00::40", "::ffff:10.0.0.65", "fd00::1%eth0"} {
		if ord, ok := b.ordinal(addr(a)); ok {
			t.Errorf("%s has ordinal %d in %s", a, ord, b.Prefix())
		}
		if err := b.TakeAddr(p, holder(1), addr(a), "", t0()); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("TakeAddr(%s) = %v", a, err)
		}
	}
	damaged := []string{"18446463705355360228 A 1 0 uid ns/pod/eth0 node", "1 A 1 0 uid-1 ns/pod/eth0 node"}
	back := DecodeBlock(b.Prefix(), "", damaged)
	if got := back.Encode(); len(got) != 2 {
		t.Errorf("records were dropped: %q", got)
	}
}

// whereabouts#83, PR#165: with IPv6 an index became negative, and half of a /64 was
// unusable.
func TestWhereabouts83HalfOfIPv6(t *testing.T) {
	p := mustPool(t, ranges("fd00::/64"))
	for _, a := range []string{"fd00::7fff:ffff:ffff:ffff", "fd00::8000:0:0:0", "fd00::ffff:ffff:ffff:fffe"} {
		b := NewBlock(BlockOf(addr(a)), "")
		if err := b.TakeAddr(p, holder(1), addr(a), "", t0()); err != nil {
			t.Errorf("TakeAddr(%s): %v", a, err)
		}
		if got, ok := b.Find(holder(1)); !ok || got != addr(a) {
			t.Errorf("Find() = %v, %v, want %s", got, ok, a)
		}
		if c := b.Counts(p, t0()); c.Allocated != 1 || c.Free != 63 {
			t.Errorf("%s: counts %v", b.Prefix(), c)
		}
	}
}

// whereabouts#573: a list of /32 was refused.
func TestWhereabouts573SingleAddresses(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.5/32", "10.0.0.9/32", "10.0.0.77"))
	b := newBlock("10.0.0.0/26")
	for i, want := range []string{"10.0.0.5", "10.0.0.9"} {
		if a, err := b.Take(p, holder(i), false, t0()); err != nil || a != addr(want) {
			t.Errorf("Take() = %v, %v, want %s", a, err, want)
		}
	}
	if a, err := b.Take(p, holder(2), false, t0()); !errors.Is(err, ErrFull) {
		t.Errorf("Take() = %v, %v, want ErrFull", a, err)
	}
}

// whereabouts v0.9.4 in slice mode ignores excludes (reproduced; also whereabouts#71,
// #293).
func TestWhereaboutsExcludesIgnored(t *testing.T) {
	p := mustPool(t, PoolSpec{
		Ranges:   []string{"10.0.0.0/25", "fd00::/121"},
		Excludes: []string{"10.0.0.0-10.0.0.99", "10.0.0.101-10.0.0.127", "fd00::/122"},
	})
	var got []netip.Addr
	for _, cidr := range []string{"10.0.0.0/26", "10.0.0.64/26", "fd00::/122", "fd00::40/122"} {
		b := newBlock(cidr)
		for i := 0; ; i++ {
			a, err := b.Take(p, holder(i), false, t0())
			if err != nil {
				break
			}
			got = append(got, a)
		}
	}
	if len(got) != 65 || got[0] != addr("10.0.0.100") || got[1] != addr("fd00::40") {
		t.Errorf("%d addresses are handed out: %v", len(got), got)
	}
}

// whereabouts v0.9.4 hands out the gateway unless it is excluded by hand.
func TestWhereaboutsGatewayHandedOut(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/29"}, Gateways: []string{"10.0.0.1"}})
	b := newBlock("10.0.0.0/26")
	for i := 0; ; i++ {
		a, err := b.Take(p, holder(i), false, t0())
		if err != nil {
			if i != 5 {
				t.Errorf("%d addresses, want 5", i)
			}
			break
		}
		if a == addr("10.0.0.1") {
			t.Error("the gateway is handed out")
		}
	}
	if err := b.TakeAddr(p, holder(9), addr("10.0.0.1"), "", t0()); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("TakeAddr(gateway) = %v", err)
	}
}

// whereabouts#288, #168: peers are confused if an address is handed out again at once
// after its release.
func TestWhereabouts288ImmediateReuse(t *testing.T) {
	p, b := mustPool(t, ranges("10.0.0.1")), newBlock("10.0.0.0/26")
	a, _ := b.Take(p, holder(1), false, t0())
	b.Free(holder(1), a, t0())
	for _, d := range []time.Duration{0, time.Second, 4999 * time.Millisecond} {
		if _, err := b.Take(p, holder(2), true, t0().Add(d)); !errors.Is(err, ErrFull) {
			t.Errorf("handed out again after %s", d)
		}
	}
}

// whereabouts#75, kubernetes#65943: a late release took the address from its next
// holder.
func TestWhereabouts75LateFree(t *testing.T) {
	p, b := mustPool(t, ranges("10.0.0.1")), newBlock("10.0.0.0/26")
	a, _ := b.Take(p, holder(1), false, t0())
	b.Free(holder(1), a, t0())
	if _, err := b.Take(p, holder(2), false, t0().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if b.Free(holder(1), a, t0().Add(time.Hour)) {
		t.Error("a late free took the address from its next holder")
	}
	successor := holder(2)
	successor.PodUID = strings.Replace(successor.PodUID, "9b2e", "aaaa", 1)
	if b.Free(successor, a, t0()) {
		t.Error("a pod of the same name with another UID took the address")
	}
}
