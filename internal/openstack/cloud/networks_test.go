package cloud

import (
	"math"
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		first, last string
		want        uint64
	}{
		{"10.0.0.2", "10.0.0.254", 253},
		{"10.0.0.2", "10.0.0.2", 1},
		{"10.0.0.3", "10.0.0.2", 0},
		{"10.0.0.3", "fd00::1", 0},
		{"fd00::1", "fd00::1:0", 1 << 16},
		{"fd00::1", "fd00::ffff:ffff:ffff:ffff", math.MaxUint64},
		{"fd00::", "fd00::ffff:ffff:ffff:ffff", math.MaxUint64},
		{"fd00::ffff", "fd00:0:0:1::1", math.MaxUint64 - 0xfffc},
		{"fd00::", "fd00:0:0:2::", math.MaxUint64},
	} {
		if got := addresses(netip.MustParseAddr(c.first), netip.MustParseAddr(c.last)); got != c.want {
			t.Errorf("addresses from %s to %s: %d, want %d", c.first, c.last, got, c.want)
		}
	}
	if got := addresses(netip.Addr{}, netip.Addr{}); got > 1 {
		t.Errorf("addresses of no range: %d", got)
	}
	if got := sum(math.MaxUint64, 1); got != math.MaxUint64 {
		t.Errorf("sum: %d", got)
	}
}
