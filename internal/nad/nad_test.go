package nad

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/whereabouts"
)

func TestParse(t *testing.T) {
	cases := []struct {
		name, config string
		ipam         string
		pools        []string
		served       bool
		fails        string
	}{
		{name: "a file on the node"},
		{name: "no addresses", config: `{"type":"macvlan"}`},
		{name: "empty", config: `{"type":"macvlan","ipam":{}}`},
		{name: "fairlead-ipam", config: `{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a","b"]}}`, ipam: Type, pools: []string{"a", "b"}, served: true},
		{name: "the default pools", config: `{"type":"bridge","ipam":{"type":"fairlead-ipam"}}`, ipam: Type, served: true},
		{
			name:   "in a list, behind one without",
			config: `{"cniVersion":"1.0.0","plugins":[{"type":"tuning"},{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a"]}}]}`,
			ipam:   Type, pools: []string{"a"}, served: true,
		},
		{name: "whereabouts", config: `{"type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`, ipam: whereabouts.Type, served: true},
		// The control loop of whereabouts fails on networks of other plugins
		// (whereabouts#704).
		{name: "of others", config: `{"type":"macvlan","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]],"pools":7}}`, ipam: "host-local"},

		{name: "no JSON", config: `{`, fails: "network configuration"},
		{name: "a list", config: `[]`, fails: "network configuration"},
		{name: "a string for addresses", config: `{"ipam":"fairlead-ipam"}`, fails: "ipam"},
		{name: "a bad pool", config: `{"ipam":{"type":"fairlead-ipam","pools":["A b"]}}`, fails: `ipam.pools[0]: "A b"`},
		{name: "a pool twice", config: `{"ipam":{"type":"fairlead-ipam","pools":["a","a"]}}`, fails: `ipam.pools[1]: "a": must be named once`},
		{name: "too many pools", config: `{"ipam":{"type":"fairlead-ipam","pools":[` + strings.Repeat(`"a",`, 16) + `"b"]}}`, fails: "at most 16"},
		{name: "a bad range", config: `{"ipam":{"type":"whereabouts","range":"10.0.0.0"}}`, fails: `ipam.range: "10.0.0.0"`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.config, nil)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("error %v, want one that says %q", err, tc.fails)
				}
				return
			}
			if err != nil || got.IPAM != tc.ipam || got.Served() != tc.served || (got.Whereabouts != nil) != (tc.ipam == whereabouts.Type) {
				t.Errorf("error %v, network %+v", err, got)
			}
			if diff := cmp.Diff(tc.pools, got.Pools); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"type":"bridge","ipam":{"type":"fairlead-ipam","pools":["a","b"]}}`)
	f.Add(`{"plugins":[{"ipam":{"type":"whereabouts","ipRanges":[{"range":"10.0.0.0/24"}]}}]}`)
	f.Fuzz(func(t *testing.T, config string) {
		n, err := Parse(config, nil)
		if err != nil && (n.Served() || len(err.Error()) == 0) {
			t.Fatalf("error %v with network %+v", err, n)
		}
		if len(n.Pools) > maxPools || n.IPAM == whereabouts.Type && len(n.Whereabouts.Ranges) == 0 {
			t.Fatalf("network %+v", n)
		}
	})
}
