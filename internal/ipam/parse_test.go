package ipam

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func mustPool(tb testing.TB, spec PoolSpec) *Pool {
	tb.Helper()
	if spec.Name == "" {
		spec.Name = "test"
	}
	p, err := ParsePool(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func ranges(r ...string) PoolSpec { return PoolSpec{Ranges: r} }

// fieldErrors returns the errors that ParsePool has joined.
func fieldErrors(t *testing.T, err error) []*FieldError {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("the error is no join: %v", err)
	}
	var out []*FieldError
	for _, e := range joined.Unwrap() {
		var f *FieldError
		if !errors.As(e, &f) {
			t.Fatalf("the error has no field: %v", e)
		}
		out = append(out, f)
	}
	return out
}

func TestParsePoolRefuses(t *testing.T) {
	type problem struct{ field, value, text string }
	tests := []struct {
		name string
		spec PoolSpec
		want []problem
	}{
		{"no ranges", PoolSpec{}, []problem{{"spec.ranges", "", "must have an entry"}}},
		{"no address", ranges("10.0.0.0/24", "pods"), []problem{{"spec.ranges[1]", "pods", "is not an IP address"}}},
		{"empty", ranges(""), []problem{{"spec.ranges[0]", "", "is not an IP address"}}},
		{"blank", ranges(" 10.0.0.1"), []problem{{"spec.ranges[0]", " 10.0.0.1", "is not an IP address"}}},
		{"leading zero", ranges("10.0.0.010"), []problem{{"spec.ranges[0]", "10.0.0.010", "is not an IP address"}}},
		{"host bits", ranges("10.0.0.5/24"), []problem{{"spec.ranges[0]", "10.0.0.5/24", "write 10.0.0.0/24 "}}},
		{"host bits, IPv6", ranges("fd00::1/64"), []problem{{"spec.ranges[0]", "fd00::1/64", "write fd00::/64 "}}},
		{"length 33", ranges("10.0.0.0/33"), []problem{{"spec.ranges[0]", "10.0.0.0/33", "a number from 1 to 32"}}},
		{"length 0", ranges("0.0.0.0/0"), []problem{{"spec.ranges[0]", "0.0.0.0/0", "a number from 1 to 32"}}},
		{"length empty", ranges("10.0.0.0/"), []problem{{"spec.ranges[0]", "10.0.0.0/", "a number from 1 to 32"}}},
		{"length signed", ranges("fd00::/+64"), []problem{{"spec.ranges[0]", "fd00::/+64", "a number from 1 to 128"}}},
		{"netmask", ranges("10.0.0.0/255.255.255.0"), []problem{{"spec.ranges[0]", "10.0.0.0/255.255.255.0", "a number"}}},
		{"first after last", ranges("10.0.0.20-10.0.0.10"), []problem{{"spec.ranges[0]", "10.0.0.20-10.0.0.10", "write 10.0.0.10-10.0.0.20"}}},
		{"mixed families", ranges("10.0.0.1-fd00::1"), []problem{{"spec.ranges[0]", "10.0.0.1-fd00::1", "mixes IPv4 and IPv6"}}},
		{"open range", ranges("10.0.0.1-"), []problem{{"spec.ranges[0]", "10.0.0.1-", `ends with ""`}}},
		{"range of what", ranges("-10.0.0.1"), []problem{{"spec.ranges[0]", "-10.0.0.1", `starts with ""`}}},
		{"three ends", ranges("10.0.0.1-10.0.0.2-10.0.0.3"), []problem{{"spec.ranges[0]", "10.0.0.1-10.0.0.2-10.0.0.3", "ends with"}}},
		{"link too small", ranges("10.0.0.10-10.0.0.20/29"), []problem{{"spec.ranges[0]", "10.0.0.10-10.0.0.20/29", "must be 27 or less"}}},
		{"link of nothing", ranges("10.0.0.10-10.0.0.20/x"), []problem{{"spec.ranges[0]", "10.0.0.10-10.0.0.20/x", `prefix length "x"`}}},
		{"zone", ranges("fe80::1%eth0/64"), []problem{{"spec.ranges[0]", "fe80::1%eth0/64", "write fe80::1"}}},
		{"mapped", ranges("::ffff:10.0.0.1"), []problem{{"spec.ranges[0]", "::ffff:10.0.0.1", "write 10.0.0.1"}}},
		{"contains mapped", ranges("::fffe:0:0-::1:0:0:0"), []problem{{"spec.ranges[0]", "::fffe:0:0-::1:0:0:0", "IPv4-mapped"}}},
		{"unspecified", ranges("0.0.0.0-0.0.0.5"), []problem{{"spec.ranges[0]", "0.0.0.0-0.0.0.5", "unspecified address 0.0.0.0"}}},
		{"unspecified, IPv6", ranges("::/96"), []problem{{"spec.ranges[0]", "::/96", "unspecified address ::"}}},
		{"loopback", ranges("127.0.0.1"), []problem{{"spec.ranges[0]", "127.0.0.1", "loopback"}}},
		{"loopback, IPv6", ranges("::1"), []problem{{"spec.ranges[0]", "::1", "loopback"}}},
		{"multicast inside", ranges("128.0.0.0/1"), []problem{{"spec.ranges[0]", "128.0.0.0/1", "multicast"}}},
		{"multicast, IPv6", ranges("ff02::/120"), []problem{{"spec.ranges[0]", "ff02::/120", "multicast"}}},
		{"broadcast", ranges("255.255.255.255"), []problem{{"spec.ranges[0]", "255.255.255.255", "broadcast"}}},
		{"overlapping ranges", ranges("10.0.0.0/24", "fd00::/64", "10.0.0.200-10.0.1.5"), []problem{
			{"spec.ranges[2]", "10.0.0.200-10.0.1.5", "overlaps spec.ranges[0] (10.0.0.0/24)"},
		}},
		{
			"overlapping excludes",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.0.0/28", "10.0.0.15-10.0.0.20"}},
			[]problem{{"spec.excludes[1]", "10.0.0.15-10.0.0.20", "overlaps spec.excludes[0] (10.0.0.0/28)"}},
		},
		{
			"exclude elsewhere",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.1.0/28", "fd00::1"}},
			[]problem{{"spec.excludes[0]", "10.0.1.0/28", "lies in none"}, {"spec.excludes[1]", "fd00::1", "lies in none"}},
		},
		{
			"exclude reaches out",
			PoolSpec{Ranges: []string{"10.0.0.10-10.0.0.20"}, Excludes: []string{"10.0.0.15-10.0.0.30"}},
			[]problem{{"spec.excludes[0]", "10.0.0.15-10.0.0.30", "10.0.0.15-10.0.0.20"}},
		},
		{
			"exclude malformed",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.0.9/28"}},
			[]problem{{"spec.excludes[0]", "10.0.0.9/28", "write 10.0.0.0/28"}},
		},
		{
			"gateway outside",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.1.1"}},
			[]problem{{"spec.gateways[0]", "10.0.1.1", "(10.0.0.0/24)"}},
		},
		{
			"gateway without link",
			PoolSpec{Ranges: []string{"10.0.0.10-10.0.0.20"}, Gateways: []string{"10.0.0.1"}},
			[]problem{{"spec.gateways[0]", "10.0.0.1", "write the link's prefix length"}},
		},
		{
			"gateway of no family",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"fd00::1"}},
			[]problem{{"spec.gateways[0]", "fd00::1", "no IPv6 range"}},
		},
		{
			"two gateways",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1", "10.0.0.2"}},
			[]problem{{"spec.gateways[1]", "10.0.0.2", "second IPv4 gateway beside 10.0.0.1"}},
		},
		{
			"three gateways",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
			[]problem{{"spec.gateways", "3 entries", "one per family"}},
		},
		{
			"gateway is a CIDR",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1/24"}},
			[]problem{{"spec.gateways[0]", "10.0.0.1/24", "is not an IP address"}},
		},
		{
			"gateway is loopback",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"127.0.0.1"}},
			[]problem{{"spec.gateways[0]", "127.0.0.1", "loopback"}},
		},
		{
			"gateway has a zone",
			PoolSpec{Ranges: []string{"fe80::/64"}, Gateways: []string{"fe80::1%eth0"}},
			[]problem{{"spec.gateways[0]", "fe80::1%eth0", "write fe80::1"}},
		},
		{
			"short cooldown",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Cooldown: 4999 * time.Millisecond},
			[]problem{{"spec.cooldown", "4.999s", "between 5s and 24h"}},
		},
		{
			"long cooldown",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Cooldown: 25 * time.Hour},
			[]problem{{"spec.cooldown", "25h0m0s", "between 5s and 24h"}},
		},
		{
			"negative cooldown",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Cooldown: -time.Minute},
			[]problem{{"spec.cooldown", "-1m0s", "between"}},
		},
		{
			"order",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Order: "fifo"},
			[]problem{{"spec.order", "fifo", "Fifo or Lowest"}},
		},
		{
			"domain",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Domain: "Storage"},
			[]problem{{"spec.domain", "Storage", "lower-case"}},
		},
		{
			"domain ends in a hyphen",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Domain: "a-"},
			[]problem{{"spec.domain", "a-", "lower-case"}},
		},
		{
			"domain too long",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Domain: strings.Repeat("a", 64)},
			[]problem{{"spec.domain", strings.Repeat("a", 64), "at most 63"}},
		},
		{
			"nothing left",
			PoolSpec{Ranges: []string{"10.0.0.0/30"}, Excludes: []string{"10.0.0.1"}, Gateways: []string{"10.0.0.2"}},
			[]problem{{"spec.ranges", "10.0.0.0/30", "leaves no IPv4 address"}},
		},
		{
			"nothing left of one family",
			PoolSpec{Ranges: []string{"10.0.0.0/30", "fd00::5"}, Excludes: []string{"fd00::5"}},
			[]problem{{"spec.ranges", "fd00::5", "leaves no IPv6 address"}},
		},
		{
			"too many",
			PoolSpec{Ranges: make([]string, 65), Excludes: make([]string, 257)},
			[]problem{{"spec.ranges", "65 entries", "at most 64"}, {"spec.excludes", "257 entries", "at most 256"}},
		},
		{
			"a bad range hides nothing and invents nothing",
			PoolSpec{
				Ranges: []string{"10.0.0.1/24", "10.1.0.0/24"}, Excludes: []string{"10.0.0.7", "x"},
				Gateways: []string{"10.0.0.1", "y"}, Order: "z", Cooldown: 1, Domain: "-",
			},
			[]problem{
				{"spec.domain", "-", "lower-case"},
				{"spec.cooldown", "1ns", "between"},
				{"spec.order", "z", "Fifo"},
				{"spec.ranges[0]", "10.0.0.1/24", "host bits"},
				{"spec.excludes[1]", "x", "is not an IP address"},
				{"spec.gateways[1]", "y", "is not an IP address"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ParsePool(tt.spec)
			if err == nil || p != nil {
				t.Fatalf("ParsePool() = %v, %v, want an error only", p, err)
			}
			got := fieldErrors(t, err)
			if len(got) != len(tt.want) {
				t.Fatalf("problems:\n%v\nwant %d", err, len(tt.want))
			}
			for i, w := range tt.want {
				if got[i].Field != w.field || got[i].Value != w.value || !strings.Contains(got[i].Problem, w.text) {
					t.Errorf("problem %d: %v\nwant %s: %q ... %s", i, got[i], w.field, w.value, w.text)
				}
			}
		})
	}
}

func TestPool(t *testing.T) {
	tests := []struct {
		name     string
		spec     PoolSpec
		families []Family
		usable   uint64
		// yes and no are addresses that the pool hands out, and does not.
		yes, no []string
		// prefixes are the expected results of Prefix, by address.
		prefixes map[string]string
	}{
		{
			"CIDR", ranges("10.0.0.0/24"),
			[]Family{IPv4},
			254,
			[]string{"10.0.0.1", "10.0.0.254"},
			[]string{"10.0.0.0", "10.0.0.255", "10.0.1.1", "fd00::1"},
			map[string]string{"10.0.0.7": "10.0.0.7/24", "10.9.9.9": "10.9.9.9/32"},
		},
		{
			"CIDR with edges",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, UseEdges: true},
			[]Family{IPv4},
			256,
			[]string{"10.0.0.0", "10.0.0.255"},
			nil, nil,
		},
		{
			"per node",
			PoolSpec{Ranges: []string{"10.244.0.0/16", "fd00:10::/64"}, PerNode: true},
			[]Family{IPv4, IPv6},
			math.MaxInt64,
			[]string{"10.244.0.0", "10.244.255.255", "fd00:10::"},
			nil,
			map[string]string{"10.244.0.7": "10.244.0.7/32", "fd00:10::7": "fd00:10::7/128"},
		},
		{
			"/31 and /127", ranges("10.0.0.0/31", "fd00::/127"),
			[]Family{IPv4, IPv6},
			4,
			[]string{"10.0.0.0", "10.0.0.1", "fd00::", "fd00::1"},
			[]string{"10.0.0.2", "fd00::2"},
			map[string]string{"10.0.0.1": "10.0.0.1/31", "fd00::1": "fd00::1/127"},
		},
		{
			"/32 and /128", ranges("10.0.0.9/32", "fd00::9/128"),
			[]Family{IPv4, IPv6},
			2,
			[]string{"10.0.0.9", "fd00::9"},
			nil, nil,
		},
		{
			"single", ranges("10.0.0.9", "fd00::9"),
			[]Family{IPv4, IPv6},
			2,
			[]string{"10.0.0.9", "fd00::9"},
			[]string{"10.0.0.8"},
			map[string]string{"10.0.0.9": "10.0.0.9/32", "fd00::9": "fd00::9/128"},
		},
		{
			"first-last has no edges", ranges("10.0.0.0-10.0.0.255", "fd00::-fd00::ff"),
			[]Family{IPv4, IPv6},
			512,
			[]string{"10.0.0.0", "10.0.0.255", "fd00::"},
			nil,
			map[string]string{"10.0.0.9": "10.0.0.9/32"},
		},
		{
			"first-last on a link",
			PoolSpec{Ranges: []string{"10.0.0.10-10.0.0.20/24"}, Gateways: []string{"10.0.0.1"}},
			[]Family{IPv4},
			11,
			[]string{"10.0.0.10", "10.0.0.20"},
			[]string{"10.0.0.1", "10.0.0.9", "10.0.0.21"},
			map[string]string{"10.0.0.15": "10.0.0.15/24"},
		},
		{
			"across blocks", ranges("10.0.0.60-10.0.0.130"),
			[]Family{IPv4},
			71,
			[]string{"10.0.0.60", "10.0.0.64", "10.0.0.130"},
			[]string{"10.0.0.59", "10.0.0.131"},
			nil,
		},
		{
			"excludes, gateway and edges meet",
			PoolSpec{Ranges: []string{"10.0.0.0/24"}, Excludes: []string{"10.0.0.0/28", "10.0.0.255"}, Gateways: []string{"10.0.0.1"}},
			[]Family{IPv4},
			239,
			[]string{"10.0.0.16", "10.0.0.254"},
			[]string{"10.0.0.0", "10.0.0.1", "10.0.0.15", "10.0.0.255"},
			nil,
		},
		{
			"IPv6 edge", ranges("fd00::/120"),
			[]Family{IPv6},
			255,
			[]string{"fd00::1", "fd00::ff"},
			[]string{"fd00::"},
			map[string]string{"fd00::7": "fd00::7/120"},
		},
		{
			"adjacent ranges", ranges("10.0.0.0/25", "10.0.0.128/25"),
			[]Family{IPv4},
			252,
			nil,
			[]string{"10.0.0.127", "10.0.0.128"},
			nil,
		},
		{
			"the top of the address space", ranges("ee00::/8", "240.0.0.0-255.255.255.254"),
			[]Family{IPv4, IPv6},
			math.MaxInt64,
			[]string{"eeff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "255.255.255.254"},
			nil, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPool(t, tt.spec)
			if diff := cmp.Diff(tt.families, p.Families()); diff != "" {
				t.Errorf("families (-want +got):\n%s", diff)
			}
			if got := p.Usable(); got != tt.usable {
				t.Errorf("Usable() = %d, want %d", got, tt.usable)
			}
			for _, a := range tt.yes {
				if !p.Allows(netip.MustParseAddr(a)) {
					t.Errorf("Allows(%s) = false", a)
				}
			}
			for _, a := range tt.no {
				if p.Allows(netip.MustParseAddr(a)) {
					t.Errorf("Allows(%s) = true", a)
				}
			}
			for a, want := range tt.prefixes {
				if got := p.Prefix(netip.MustParseAddr(a)).String(); got != want {
					t.Errorf("Prefix(%s) = %s, want %s", a, got, want)
				}
			}
			if p.Allows(netip.Addr{}) || p.Allows(netip.MustParseAddr("fd00::1%eth0")) {
				t.Error("the zero address or one with a zone is handed out")
			}
			checkMasks(t, p)
		})
	}
}

// checkMasks checks that UsableIn and Allows agree in the blocks at the ends of the
// pool's ranges.
func checkMasks(t *testing.T, p *Pool) {
	t.Helper()
	for _, f := range p.Families() {
		for _, r := range p.space(f).ranges {
			for _, a := range []netip.Addr{r.first, r.last} {
				block := BlockOf(a)
				n := uint64(0)
				for x := block.Addr(); block.Contains(x); x = x.Next() {
					if p.Allows(x) {
						n++
					}
				}
				if got := p.UsableIn(block); got != n {
					t.Errorf("UsableIn(%s) = %d, but %d addresses are allowed", block, got, n)
				}
			}
		}
	}
}

func TestPoolDefaults(t *testing.T) {
	p := mustPool(t, PoolSpec{Name: "a", Ranges: []string{"10.0.0.0/24"}, Gateways: []string{"10.0.0.1"}})
	g4, ok4 := p.Gateway(IPv4)
	_, ok6 := p.Gateway(IPv6)
	if p.Name() != "a" || p.Domain() != "default" || p.Cooldown() != 30*time.Second || p.PerNode() || p.order != Fifo ||
		g4 != netip.MustParseAddr("10.0.0.1") || !ok4 || ok6 {
		t.Errorf("pool = %+v", p)
	}
}

func TestBlockName(t *testing.T) {
	for a, want := range map[string]string{
		"10.0.0.77":    "default.4-0a000040",
		"fd00::ab:1ff": "default.6-fd0000000000000000000000" + "00ab01c0",
	} {
		if got := BlockName("default", BlockOf(netip.MustParseAddr(a))); got != want {
			t.Errorf("BlockName(%s) = %s, want %s", a, got, want)
		}
	}
}
