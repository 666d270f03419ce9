package whereabouts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// shape describes a configuration in words: ranges as first-last of prefix, less
// excludes.
func shape(c Config) []string {
	var out []string
	for _, r := range c.Ranges {
		text := r.First.String() + "-" + r.Last.String() + " of " + r.Prefix.String()
		for _, e := range r.Excludes {
			text += " -" + e.String()
		}
		out = append(out, text)
	}
	return out
}

func TestParseRanges(t *testing.T) {
	cases := []struct {
		name, section string
		want          []string
		warns         []string // each in one warning, in order
		fails         []string
	}{
		{name: "a CIDR", section: `"range":"10.0.0.0/24"`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}},
		{name: "a CIDR with host bits", section: `"range":"10.0.0.9/24"`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}},
		{name: "leading zeros", section: `"range":"10.00.000.0/24","range_start":"10.0.0.020"`, want: []string{"10.0.0.20-10.0.0.254 of 10.0.0.0/24"}},
		{name: "many leading zeros", section: `"range":"00192.00168.1.0/024"`, want: []string{"192.168.1.1-192.168.1.254 of 192.168.1.0/24"}},
		{name: "many leading zeros in a dash", section: `"range":"00192.00168.1.010-0192.000168.1.0020/24"`, want: []string{"192.168.1.10-192.168.1.20 of 192.168.1.0/24"}},
		{
			name: "many leading zeros in start, end and excludes", section: `"range":"192.168.1.0/24","range_start":"00192.00168.1.0005","range_end":"000192.168.01.9","exclude":["00192.168.1.0006/032"]`,
			want: []string{"192.168.1.5-192.168.1.9 of 192.168.1.0/24 -192.168.1.6/32"},
		},
		{name: "leading zeros of IPv6", section: `"range":"0fd00:00000::/64"`, want: []string{"fd00::1-fd00::ffff:ffff:ffff:ffff of fd00::/64"}},
		{name: "a dash that ends before it starts", section: `"range":"10.0.0.20-10.0.0.10/24"`, want: []string{"10.0.0.20-10.0.0.254 of 10.0.0.0/24"}, warns: []string{`range: "10.0.0.10" is no address for a pod between 10.0.0.20 and 10.0.0.254`}},
		{name: "start and end", section: `"range":"10.0.0.0/24","range_start":"10.0.0.5","range_end":"10.0.0.9"`, want: []string{"10.0.0.5-10.0.0.9 of 10.0.0.0/24"}},
		{name: "the edges as start and end", section: `"range":"10.0.0.0/24","range_start":"10.0.0.0","range_end":"10.0.0.255"`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}},
		// whereabouts begins at .1 then, without a message.
		{name: "start elsewhere", section: `"range":"10.0.0.0/24","range_start":"10.0.1.5"`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}, warns: []string{`range_start: "10.0.1.5"`}},
		{name: "end before start", section: `"range":"10.0.0.0/24","range_start":"10.0.0.9","range_end":"10.0.0.5"`, want: []string{"10.0.0.9-10.0.0.254 of 10.0.0.0/24"}, warns: []string{`range_end: "10.0.0.5"`}},
		{name: "start is no address", section: `"range":"10.0.0.0/24","range_start":"ten"`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}, warns: []string{`range_start: "ten"`}},
		{name: "dash", section: `"range":"10.0.0.10-10.0.0.20/24"`, want: []string{"10.0.0.10-10.0.0.20 of 10.0.0.0/24"}},
		{name: "dash goes before start and end", section: `"range":"10.0.0.10-10.0.0.20/24","range_start":"10.0.0.15","range_end":"10.0.0.16"`, want: []string{"10.0.0.10-10.0.0.20 of 10.0.0.0/24"}},
		{name: "dash of IPv6", section: `"range":"fd00::10-fd00::20/64"`, want: []string{"fd00::10-fd00::20 of fd00::/64"}},
		{
			name: "dual stack", section: `"range":"10.0.0.0/24","exclude":["10.0.0.0/28","10.0.0.99"],"ipRanges":[{"range":"fd00::/64","range_start":"fd00::5","exclude":["fd00::8/126"]}]`,
			want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24 -10.0.0.0/28 -10.0.0.99/32", "fd00::5-fd00::ffff:ffff:ffff:ffff of fd00::/64 -fd00::8/126"},
		},
		{name: "ipRanges alone", section: `"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.1.0.0/24"}]`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24", "10.1.0.1-10.1.0.254 of 10.1.0.0/24"}},
		// whereabouts#573: too small for it.
		{name: "one address", section: `"range":"10.0.0.7/32"`, want: []string{"10.0.0.7-10.0.0.7 of 10.0.0.7/32"}},
		{name: "two addresses", section: `"ipRanges":[{"range":"10.0.0.6/31"},{"range":"fd00::/127"}]`, want: []string{"10.0.0.6-10.0.0.7 of 10.0.0.6/31", "fd00::-fd00::1 of fd00::/127"}},
		// whereabouts#83, #84, #71: offsets beyond 64 bits, and half of a /64.
		{name: "a large network", section: `"range":"fd00::/16"`, want: []string{"fd00::1-fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff of fd00::/16"}},
		{name: "an exclude elsewhere", section: `"range":"10.0.0.0/24","exclude":["10.1.0.0/24"]`, want: []string{"10.0.0.1-10.0.0.254 of 10.0.0.0/24"}, warns: []string{`exclude[0]: "10.1.0.0/24" lies outside`}},

		{name: "no range", fails: []string{"ipam.range:", "is missing"}},
		{name: "no CIDR", section: `"range":"10.0.0.0"`, fails: []string{`ipam.range: "10.0.0.0" must be a CIDR`}},
		{name: "dash from elsewhere", section: `"range":"10.1.0.10-10.0.0.20/24"`, fails: []string{"must begin with an address of 10.0.0.0/24"}},
		// whereabouts clears the list before it checks it, and fails at each ADD.
		{name: "a bad exclude", section: `"range":"10.0.0.0/24","exclude":["10.0.0"]`, fails: []string{`ipam.exclude[0]: "10.0.0"`}},
		{name: "a bad exclude of the second", section: `"range":"10.0.0.0/24","ipRanges":[{"range":"fd00::/64","exclude":["x"]}]`, fails: []string{`ipam.ipRanges[0].exclude[0]: "x"`}},
		// whereabouts gives a pod ::1, which is its own loopback.
		{name: "loopback", section: `"range":"::1/126"`, fails: []string{`ipam.range: "::1/126"`, "unicast"}},
		{name: "an octet of more than 255", section: `"range":"000256.0.0.0/24"`, fails: []string{"must be a CIDR"}},
		{name: "multicast", section: `"range":"224.0.0.0/24"`, fails: []string{"unicast"}},
		{name: "everything", section: `"range":"0.0.0.0/0"`, fails: []string{"must be a CIDR"}},
		{name: "nothing left", section: `"range":"10.0.0.0/30","exclude":["10.0.0.1"],"gateway":"10.0.0.2"`, fails: []string{"no address left"}},
		{name: "two mistakes", section: `"range":"x","gateway":"y"`, fails: []string{`ipam.range: "x"`, `ipam.gateway: "y"`}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			section := `{"type":"whereabouts"`
			if tc.section != "" {
				section += "," + tc.section
			}
			got, warnings, err := Parse([]byte(section+"}"), nil)
			for _, text := range tc.fails {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("error %v, want one that says %q", err, text)
				}
			}
			if tc.fails != nil {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, shape(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			checkWarnings(t, warnings, tc.warns)
			for _, pool := range Pools(got, Domain(got.NetworkName)) {
				if _, err := block.PoolOf(&pool); err != nil {
					t.Errorf("pool %s cannot be used: %v", pool.Name, err)
				}
			}
		})
	}
}

// checkWarnings checks that each warning contains the text at the same index.
func checkWarnings(t *testing.T, warnings, want []string) {
	t.Helper()
	if !slices.EqualFunc(warnings, want, strings.Contains) {
		t.Errorf("warnings %q, want ones that say %q", warnings, want)
	}
}

func TestParseEverythingElse(t *testing.T) {
	section := `{"type":"whereabouts","range":"10.0.0.0/24","gateway":"10.0.0.1","network_name":"blue",
		"ipRanges":[{"range":"fd00::/64"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.8.1.0/8","gw":"10.0.0.9"}],
		"dns":{"nameservers":["10.0.0.53"],"domain":"a.b","search":["c"],"options":["d"]},
		"addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"address":"192.168.0.1/16"}],
		"enable_overlapping_ranges":false,"node_slice_size":"/26","log_file":"/tmp/wb","leader_lease_duration":1500,
		"sleep_for_race":0,"kubernetes":{"kubeconfig":"/x"},"configuration_path":"/y","datastore":"kubernetes","surprise":1}`
	got, warnings, err := Parse([]byte(section), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		NetworkName: "blue", Gateway: netip.MustParseAddr("10.0.0.1"),
		Routes: []v1alpha1.Route{{Destination: "0.0.0.0/0"}, {Destination: "10.0.0.0/8", Gateway: "10.0.0.9"}},
		DNS:    &v1alpha1.DNS{Nameservers: []string{"10.0.0.53"}, Domain: "a.b", Search: []string{"c"}, Options: []string{"d"}},
		Addresses: []Address{
			{Prefix: netip.MustParsePrefix("10.0.0.5/24"), Gateway: netip.MustParseAddr("10.0.0.1")},
			{Prefix: netip.MustParsePrefix("192.168.0.1/16")},
		},
	}
	compare := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(Config{}, "Ranges")}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	checkWarnings(t, warnings, []string{
		"leader_lease_duration, log_file, sleep_for_race: without effect",
		`["surprise"]: not an option`,
		"addresses: given to every interface",
		"enable_overlapping_ranges: false",
		"node_slice_size: /26",
		"addresses: 10.0.0.5 lies in range 10.0.0.0/24",
		"gateway: 10.0.0.1 is not handed out",
		"gateway: 10.0.0.1 is the gateway of addresses of its own family only",
	})
}

func TestParseTakesDefaultsFromTheFlatFile(t *testing.T) {
	flat := `{"datastore":"kubernetes","kubernetes":{"kubeconfig":"/x"},"log_level":"debug","range":"10.9.0.0/24","gateway":"10.9.0.1",
		"enable_overlapping_ranges":false,"routes":[{"dst":"10.0.0.0/8"}],"dns":{"domain":"flat","search":["flat"]},"addresses":[{"address":"10.9.0.5/24"}]}`
	got, warnings, err := Parse([]byte(`{"type":"whereabouts","ipRanges":[{"range":"fd00::/64"}],"dns":{"domain":"own"}}`), []byte(flat))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.9.0.1-10.9.0.254 of 10.9.0.0/24", "fd00::1-fd00::ffff:ffff:ffff:ffff of fd00::/64"}, shape(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(&v1alpha1.DNS{Domain: "own", Search: []string{"flat"}}, got.DNS); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]v1alpha1.Route{{Destination: "10.0.0.0/8"}}, got.Routes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// As in whereabouts, the file does not turn it off.
	checkWarnings(t, warnings, []string{"addresses of the flat file", "gateway: 10.9.0.1 is not handed out", "own family only"})
}

func TestParseRefusesOtherTypes(t *testing.T) {
	for _, section := range []string{`{"type":"host-local","range":"10.0.0.0/24"}`, `{"range":"10.0.0.0/24"}`, `[]`, `{`, ``, `{"type":"whereabouts","range":7}`} {
		if _, _, err := Parse([]byte(section), nil); err == nil || !strings.Contains(err.Error(), "ipam") {
			t.Errorf("%s: error %v", section, err)
		}
	}
}

func TestDomain(t *testing.T) {
	long := strings.Repeat("a", 80)
	cases := map[string]string{
		"":        "default",
		"blue":    "blue",
		"net-1":   "net-1",
		"default": "default-37a8eec1", // not the unnamed network
		"Blue":    "blue-ec7d56a0",
		"a.b":     "a-b-", "-": "", long: strings.Repeat("a", 54) + "-",
	}
	for name, want := range cases {
		got := Domain(name)
		if !strings.HasPrefix(got, want) || len(got) > 63 || strings.Trim(got, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Trim(got, "-") != got {
			t.Errorf("Domain(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestPools(t *testing.T) {
	section := `{"type":"whereabouts","range":"10.0.0.0/24","ipRanges":[{"range":"fd00::/64"},{"range":"10.0.0.0/24"},
		{"range":"10.0.0.0/24","exclude":["10.0.0.0/28","10.0.0.8/29","10.0.0.16","10.0.0.99"]}]`
	plain, _, err := Parse([]byte(section+"}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	pools := Pools(plain, Domain(plain.NetworkName))
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	if diff := cmp.Diff([]string{"wb-10.0.0.0-24", "wb-fd00---64", "wb-10.0.0.0-24-ecc62058"}, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.1-10.0.0.16", "10.0.0.99"}, pools[2].Spec.Excludes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	named, _, err := Parse([]byte(section+`,"network_name":"blue","gateway":"10.0.0.1"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range Pools(named, Domain(named.NetworkName)) {
		if p.Name == pools[i].Name || p.Spec.Domain != "blue" || !strings.HasPrefix(p.Name, "wb-blue-") {
			t.Errorf("pool %s of domain %s, the unnamed network's is %s", p.Name, p.Spec.Domain, pools[i].Name)
		}
	}
	if got := Pools(named, Domain(named.NetworkName))[0].Spec.Gateways; !slices.Equal(got, []string{"10.0.0.1"}) {
		t.Errorf("gateways %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"type":"whereabouts","range":"10.0.0.0/24","exclude":["10.0.0.0/28"],"gateway":"10.0.0.1"}`,
		`{"type":"whereabouts","ipRanges":[{"range":"fd00::10-fd00::20/64","exclude":["fd00::12"]}],"network_name":"A b"}`,
		`{"type":"whereabouts","range":"255.255.255.254/31"}`, `{"type":"whereabouts","range":"ffff::/16"}`,
		`{"type":"whereabouts","range":"10.0.0.0/24","addresses":[{"address":"10.0.0.3/24"}],"routes":[{"dst":"::/0","gw":"fd00::1"}]}`,
	} {
		f.Add([]byte(s), []byte(`{"range_start":"10.0.0.9"}`))
	}
	f.Fuzz(func(t *testing.T, section, flat []byte) {
		c, _, err := Parse(section, flat)
		if err != nil {
			return
		}
		for _, pool := range Pools(c, Domain(c.NetworkName)) {
			parsed, err := block.PoolOf(&pool)
			if err != nil {
				t.Fatalf("pool %s of %s cannot be used: %v", pool.Name, section, err)
			}
			if len(pool.Name) > 253 {
				t.Fatalf("name %s is too long", pool.Name)
			}
			for _, a := range c.Addresses {
				if parsed.Allows(a.Prefix.Addr()) {
					t.Fatalf("pool %s hands out the static address %s", pool.Name, a.Prefix)
				}
			}
			if c.Gateway.IsValid() && parsed.Allows(c.Gateway) {
				t.Fatalf("pool %s hands out the gateway %s", pool.Name, c.Gateway)
			}
		}
	})
}
