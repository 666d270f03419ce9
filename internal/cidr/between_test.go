package cidr

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBetween(t *testing.T) {
	for _, tc := range []struct{ first, last, want string }{
		{"10.0.0.0", "10.0.255.255", "[10.0.0.0/16]"},
		{"10.0.0.7", "10.0.0.7", "[10.0.0.7/32]"},
		{"10.0.0.1", "10.0.0.6", "[10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32]"},
		{"255.255.255.254", "255.255.255.255", "[255.255.255.254/31]"},
		{"0.0.0.0", "255.255.255.255", "[0.0.0.0/0]"},
		{"fd00::", "fd00::ffff:ffff:ffff:ffff", "[fd00::/64]"},
		{"fd00::1", "fd00::2", "[fd00::1/128 fd00::2/128]"},
	} {
		got := fmt.Sprint(Between(netip.MustParseAddr(tc.first), netip.MustParseAddr(tc.last)))
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s to %s: -want +got:\n%s", tc.first, tc.last, diff)
		}
	}
}
