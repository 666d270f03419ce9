package whereabouts

// Defects of whereabouts with valid configurations, which Fairlead must not have.

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/ipam/block"
)

// poolsOf returns the names of the pools of a section, after a check that all are usable.
func poolsOf(t *testing.T, section string) []string {
	t.Helper()
	c, _, err := Parse([]byte(section), nil)
	if err != nil {
		t.Fatalf("%s: %v", section, err)
	}
	var names []string
	for _, p := range Pools(c, Domain(c.NetworkName)) {
		if _, err := block.PoolOf(&p); err != nil {
			t.Errorf("%s: pool %s: %v", section, p.Name, err)
		}
		names = append(names, p.Spec.Domain+" "+p.Name)
	}
	return names
}

// whereabouts#558: networks without network_name counted as one network, so a second
// network with another range or slice size broke both.
func TestWhereabouts558NetworksWithoutAName(t *testing.T) {
	for section, want := range map[string]string{
		`{"type":"whereabouts","range":"10.0.0.0/24","node_slice_size":"/28"}`: "default wb-10.0.0.0-24",
		`{"type":"whereabouts","range":"10.1.0.0/24","node_slice_size":"/26"}`: "default wb-10.1.0.0-24",
	} {
		if diff := cmp.Diff([]string{want}, poolsOf(t, section)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", section, diff)
		}
	}
}

// whereabouts#507: a network of both families stopped working with the check of
// overlapping ranges, which became the default.
func TestWhereabouts507BothFamilies(t *testing.T) {
	const ranges = `{"type":"whereabouts","ipRanges":[{"range":"10.0.0.0/24"},{"range":"fd00::/64"}]`
	want := []string{"default wb-10.0.0.0-24", "default wb-fd00---64"}
	for _, more := range []string{`}`, `,"enable_overlapping_ranges":true}`, `,"enable_overlapping_ranges":false}`} {
		if diff := cmp.Diff(want, poolsOf(t, ranges+more)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", more, diff)
		}
	}
}

// whereabouts v0.9.4, reproduced: with node_slice_size its controller panics on IPv6,
// uses only the first range, and ignores excludes, range_start and range_end.
func TestWhereaboutsSlicesDropTheRest(t *testing.T) {
	c, _, err := Parse([]byte(`{"type":"whereabouts","node_slice_size":"/120","ipRanges":[
		{"range":"10.0.0.0/24","range_start":"10.0.0.10","range_end":"10.0.0.20","exclude":["10.0.0.12/32"]},{"range":"fd00::/64","exclude":["fd00::/120"]}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	pools := Pools(c, Domain(c.NetworkName))
	if len(pools) != 2 {
		t.Fatalf("%d pools, want 2", len(pools))
	}
	for i, allowed := range []map[string]bool{
		{"10.0.0.9": false, "10.0.0.10": true, "10.0.0.12": false, "10.0.0.20": true, "10.0.0.21": false},
		{"fd00::ff": false, "fd00::100": true, "fd00::ffff:0:0:1": true},
	} {
		p, err := block.PoolOf(&pools[i])
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range allowed {
			if got := p.Allows(netip.MustParseAddr(text)); got != want {
				t.Errorf("pool %s hands out %s: %v, want %v", p.Name(), text, got, want)
			}
		}
	}
}
