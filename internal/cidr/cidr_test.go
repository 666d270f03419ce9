package cidr

import (
	"net/netip"
	"slices"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestLast(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/24": "10.0.0.255", "10.0.0.7/25": "10.0.0.127", "10.0.0.7/32": "10.0.0.7", "0.0.0.0/0": "255.255.255.255",
		"fd00::/64": "fd00::ffff:ffff:ffff:ffff", "::/0": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := Last(netip.MustParsePrefix(in)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestAggregate(t *testing.T) {
	for _, c := range []struct {
		name     string
		least    int
		in, want []string
	}{
		{"nothing", 0, nil, nil},
		{"in order, host bits cleared", 0, []string{"10.0.1.7/24", "10.0.0.0/26"}, []string{"10.0.0.0/26", "10.0.1.0/24"}},
		{"one in another, and twice", 0, []string{"10.0.0.128/25", "10.0.0.0/16", "10.0.3.1/32", "10.0.0.0/16"}, []string{"10.0.0.0/16"}},
		{"halves of halves", 0, []string{"10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/25"}, []string{"10.0.0.0/24"}},
		{"neighbours that are no halves", 0, []string{"10.0.0.64/26", "10.0.0.128/26"}, []string{"10.0.0.64/26", "10.0.0.128/26"}},
		{"both families", 0, []string{"fd00::/64", "10.0.0.0/8", "fd00:0:0:1::/64"}, []string{"10.0.0.0/8", "fd00::/63"}},
		{"everything", 0, []string{"0.0.0.0/1", "128.0.0.0/1", "::/0"}, []string{"0.0.0.0/0", "::/0"}},
		{"never everything", 1, []string{"0.0.0.0/1", "128.0.0.0/1"}, []string{"0.0.0.0/1", "128.0.0.0/1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Aggregate(prefixes(c.in...), c.least); !slices.Equal(got, prefixes(c.want...)) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
