package ipam

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWithheld(t *testing.T) {
	p, err := ParsePool(PoolSpec{
		Name: "p", Ranges: []string{"10.0.0.0/24", "fd00::/64"}, Gateways: []string{"10.0.0.1"}, Excludes: []string{"10.0.0.8-10.0.0.9"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"10.0.0.0":   "an edge of its range",
		"10.0.0.1":   "its gateway",
		"10.0.0.2":   "",
		"10.0.0.8":   "excluded",
		"10.0.0.255": "an edge of its range",
		"10.0.1.0":   "",
		"fd00::":     "an edge of its range",
		"fd00::1":    "",
	} {
		t.Run(addr, func(t *testing.T) {
			if got := p.Withheld(netip.MustParseAddr(addr)); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestBlocksOfAPool(t *testing.T) {
	for _, tt := range []struct {
		ranges []string
		want   uint64
	}{
		{[]string{"10.0.0.7"}, 1},
		{[]string{"10.0.0.0/24"}, 4},
		{[]string{"10.0.0.60-10.0.0.70"}, 2},
		{[]string{"10.0.0.0/26", "fd00::/64"}, 1 + 1<<58},
	} {
		p, err := ParsePool(PoolSpec{Name: "p", Ranges: tt.ranges})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Blocks(); got != tt.want {
			t.Errorf("%v: %d blocks, want %d", tt.ranges, got, tt.want)
		}
	}
}

// TestUnreadable: a record that names no address withholds all addresses without a
// record.
func TestUnreadable(t *testing.T) {
	prefix := netip.MustParsePrefix("10.0.0.0/26")
	addrs := Addrs(prefix)
	if len(addrs) != 64 || addrs[0] != prefix.Addr() || addrs[63] != netip.MustParseAddr("10.0.0.63") {
		t.Fatalf("addresses of %s: %v", prefix, addrs)
	}
	b := DecodeBlock(prefix, "", []string{"3 A garbled"})
	if b.Fresh(addrs[3]) || !b.Fresh(addrs[4]) {
		t.Errorf("fresh: 3 %t, 4 %t; want false, true", b.Fresh(addrs[3]), b.Fresh(addrs[4]))
	}
	b = DecodeBlock(prefix, "", []string{"3 A garbled", "nonsense"})
	want := []Unreadable{{Addr: addrs[3], Text: "3 A garbled"}, {Text: "nonsense"}}
	if diff := cmp.Diff(want, b.Unreadable(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if b.Fresh(addrs[4]) {
		t.Error("an address is fresh that the nonsense may be about")
	}
}

func TestCooling(t *testing.T) {
	p, err := ParsePool(PoolSpec{Name: "p", Ranges: []string{"10.0.0.0/26"}, Cooldown: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	start := Moment{Wall: time.UnixMilli(1_700_000_000_000)}
	h := Holder{PodUID: "u", Interface: "eth0"}
	b := NewBlock(netip.MustParsePrefix("10.0.0.0/26"), "")
	a, err := b.Take(p, h, false, start)
	if err != nil {
		t.Fatal(err)
	}
	if b.Cooling(p, a, start) {
		t.Error("a taken address cools down")
	}
	b.Free(h, a, start)
	if !b.Cooling(p, a, start.Add(59*time.Second)) || b.Cooling(p, a, start.Add(time.Minute)) {
		t.Error("want it to cool down for a minute")
	}
}
