package fabric

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cidr"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

var sameNet = cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func pairs(all ...string) []cloud.Pair {
	var out []cloud.Pair
	for _, p := range prefixes(all...) {
		out = append(out, cloud.Pair{Prefix: p})
	}
	return out
}

func TestAggregate(t *testing.T) {
	for _, tc := range []struct{ name, in, want []string }{
		{[]string{"nothing"}, nil, nil},
		{[]string{"neighbours"}, []string{"10.244.1.64/26", "10.244.1.0/26"}, []string{"10.244.1.0/25"}},
		{[]string{"not one parent"}, []string{"10.244.1.64/26", "10.244.1.128/26"}, []string{"10.244.1.64/26", "10.244.1.128/26"}},
		{[]string{"in steps"}, []string{"10.244.1.0/26", "10.244.1.64/26", "10.244.1.128/25", "10.244.0.0/24"}, []string{"10.244.0.0/23"}},
		{[]string{"within another"}, []string{"10.244.0.0/16", "10.244.3.0/26", "10.244.0.0/16"}, []string{"10.244.0.0/16"}},
		{[]string{"both families"}, []string{"fd00:1::40/122", "10.0.0.0/26", "fd00:1::/122"}, []string{"10.0.0.0/26", "fd00:1::/121"}},
		{[]string{"never everything"}, []string{"0.0.0.0/1", "128.0.0.0/1", "0.0.0.0/0"}, []string{"0.0.0.0/1", "128.0.0.0/1"}},
	} {
		t.Run(tc.name[0], func(t *testing.T) {
			if diff := cmp.Diff(tc.want, texts(aggregate(prefixes(tc.in...))), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPoolPrefixes(t *testing.T) {
	for _, tc := range []struct {
		ranges, want []string
		bad          bool
	}{
		{ranges: []string{"10.244.0.0/16", "fd00:10:244::/56"}, want: []string{"10.244.0.0/16", "fd00:10:244::/56"}},
		{ranges: []string{"10.0.0.10-10.0.0.20"}, want: []string{"10.0.0.10/31", "10.0.0.12/30", "10.0.0.16/30", "10.0.0.20/32"}},
		{ranges: []string{"10.0.0.0-10.0.0.255/24"}, want: []string{"10.0.0.0/24"}},
		{ranges: []string{"10.0.0.7"}, want: []string{"10.0.0.7/32"}},
		{ranges: []string{"0.0.0.0-255.255.255.255"}, want: []string{"0.0.0.0/0"}},
		{ranges: []string{"10.0.0.9-10.0.0.8"}, bad: true},
		{ranges: []string{"10.0.0.9-fd00::1"}, bad: true},
		{ranges: []string{"::ffff:10.0.0.1"}, bad: true},
		{ranges: []string{"all"}, bad: true},
	} {
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.IPPoolSpec{Ranges: tc.ranges}}
		got, err := ofPool(pool)
		if diff := cmp.Diff(tc.want, texts(got), cmpopts.EquateEmpty()); diff != "" || (err != nil) != tc.bad {
			t.Errorf("%q: %v%s", tc.ranges, err, diff)
		}
	}
}

func TestPlanPort(t *testing.T) {
	const mac = "fa:16:3e:00:00:01"
	nine := []string{"1.0.0.1/32", "1.0.0.2/32", "1.0.0.3/32", "1.0.0.4/32", "1.0.0.5/32", "1.0.0.6/32", "1.0.0.7/32", "1.0.0.8/32", "1.0.0.9/32"}
	for _, tc := range []struct {
		name         string
		has          []cloud.Pair
		groups       []string
		ours         v1alpha1.Fabric
		wants        [][]netip.Prefix
		group        string
		pairs        []cloud.Pair // of the change; nil for none
		newGroups    []string     // of the change; nil for none
		after        []string     // the record
		before       []string
		afterGroup   string
		coarse       bool
		changeToNone bool
	}{
		{
			name: "a new port", has: pairs("10.9.9.9/32"), groups: []string{"default"}, wants: [][]netip.Prefix{prefixes("10.244.0.0/16", "fd00::/64")}, group: "g",
			pairs: pairs("10.9.9.9/32", "10.244.0.0/16", "fd00::/64"), newGroups: []string{"default", "g"},
			before: []string{"10.244.0.0/16", "fd00::/64"}, after: []string{"10.244.0.0/16", "fd00::/64"}, afterGroup: "g",
		},
		{
			name: "complete", has: []cloud.Pair{{Prefix: prefixes("10.244.0.0/16")[0], MAC: mac}}, groups: []string{"g"},
			ours: v1alpha1.Fabric{Pairs: []string{"10.244.0.0/16"}, Group: "g"}, wants: [][]netip.Prefix{prefixes("10.244.0.0/16")}, group: "g",
			before: []string{"10.244.0.0/16"}, after: []string{"10.244.0.0/16"}, afterGroup: "g",
		},
		{
			name: "another's pair with the same range is enough", has: pairs("10.244.0.0/16"), wants: [][]netip.Prefix{prefixes("10.244.0.0/16")},
		},
		{
			name: "another's pair for another MAC is not", has: []cloud.Pair{{Prefix: prefixes("10.244.0.0/16")[0], MAC: "00:00:5e:00:01:01"}},
			wants: [][]netip.Prefix{prefixes("10.244.0.0/16")},
			pairs: append([]cloud.Pair{{Prefix: prefixes("10.244.0.0/16")[0], MAC: "00:00:5e:00:01:01"}}, pairs("10.244.0.0/16")...),
			after: []string{"10.244.0.0/16"}, before: []string{"10.244.0.0/16"},
		},
		{
			name: "removed by hand", ours: v1alpha1.Fabric{Pairs: []string{"10.244.0.0/16"}, Group: "g"}, groups: []string{"default"},
			wants: [][]netip.Prefix{prefixes("10.244.0.0/16")}, group: "g", pairs: pairs("10.244.0.0/16"), newGroups: []string{"default", "g"},
			before: []string{"10.244.0.0/16"}, after: []string{"10.244.0.0/16"}, afterGroup: "g",
		},
		{
			name: "a block returned, another taken", has: pairs("10.244.1.0/26", "10.9.9.9/32"), ours: v1alpha1.Fabric{Pairs: []string{"10.244.1.0/26"}},
			wants: [][]netip.Prefix{prefixes("10.244.2.0/26")}, pairs: pairs("10.9.9.9/32", "10.244.2.0/26"),
			before: []string{"10.244.2.0/26", "10.244.1.0/26"}, after: []string{"10.244.2.0/26"},
		},
		{
			name: "the node leaves", has: pairs("10.244.0.0/16", "10.9.9.9/32", "10.245.0.0/16"), groups: []string{"default", "g"},
			ours:  v1alpha1.Fabric{Pairs: []string{"10.244.0.0/16"}, Group: "g"},
			pairs: pairs("10.9.9.9/32", "10.245.0.0/16"), newGroups: []string{"default"}, before: []string{"10.244.0.0/16"},
		},
		{
			name: "another's group stays", groups: []string{"g"}, wants: [][]netip.Prefix{{}}, group: "g",
		},
		{
			name: "blocks beyond the limit", has: pairs(nine...), wants: [][]netip.Prefix{prefixes("10.244.1.0/26", "10.244.3.0/26"), prefixes("10.244.0.0/16")},
			pairs: append(pairs(nine...), pairs("10.244.0.0/16")...), before: []string{"10.244.0.0/16"}, after: []string{"10.244.0.0/16"}, coarse: true,
		},
		{
			name: "blocks within the limit", has: pairs(nine...), wants: [][]netip.Prefix{prefixes("10.244.1.0/26"), prefixes("10.244.0.0/16")},
			pairs: append(pairs(nine...), pairs("10.244.1.0/26")...), before: []string{"10.244.1.0/26"}, after: []string{"10.244.1.0/26"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := planPort(cloud.Port{MAC: mac, Pairs: tc.has, Groups: tc.groups}, tc.ours, tc.wants, tc.group)
			var newPairs []cloud.Pair
			if got.change.Pairs != nil {
				newPairs = *got.change.Pairs
			}
			var newGroups []string
			if got.change.Groups != nil {
				newGroups = *got.change.Groups
			}
			for _, d := range []string{
				cmp.Diff(tc.pairs, newPairs, sameNet), cmp.Diff(tc.newGroups, newGroups, cmpopts.EquateEmpty()),
				cmp.Diff(tc.after, texts(got.pairs), cmpopts.EquateEmpty()), cmp.Diff(tc.before, texts(got.before), cmpopts.EquateEmpty()),
				cmp.Diff(tc.afterGroup, got.group), cmp.Diff(tc.coarse, got.coarse),
				cmp.Diff(tc.pairs != nil || tc.newGroups != nil, got.changes()),
			} {
				if d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestPlanRules(t *testing.T) {
	const mark = "fairlead:cluster=c1 fabric"
	p := prefixes("10.244.0.0/16", "fd00::/64", "10.9.0.0/16")
	have := []cloud.Rule{
		{ID: "egress", Egress: true},
		{ID: "theirs", Remote: p[0]},
		{ID: "narrow", Remote: p[1], IPv6: true, Protocol: "tcp"},
		{ID: "old", Description: mark, Remote: p[2]},
		{ID: "other cluster", Description: "fairlead:cluster=c2 fabric", Remote: p[2]},
	}
	add, remove := planRules(have, p[:2], mark)
	if diff := cmp.Diff([]cloud.Rule{{Description: mark, IPv6: true, Remote: p[1]}}, add, sameNet); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"old"}, remove); diff != "" {
		t.Error(diff)
	}
}

func TestPlanRoutes(t *testing.T) {
	route := func(destination, hop string) cloud.Route {
		return cloud.Route{Destination: netip.MustParsePrefix(destination), NextHop: netip.MustParseAddr(hop)}
	}
	a, b, c := route("10.244.1.0/26", "192.0.2.1"), route("10.244.2.0/26", "192.0.2.1"), route("10.244.3.0/26", "192.0.2.1")
	moved := route("10.244.1.0/26", "192.0.2.9")
	add, remove, record, before := planRoutes([]cloud.Route{a, b, c}, []cloud.Route{moved, c}, []v1alpha1.FabricRoute{routeText(a), {Destination: "x"}})
	for _, d := range []string{
		cmp.Diff([]cloud.Route{moved}, add, sameNet), cmp.Diff([]cloud.Route{a}, remove, sameNet),
		cmp.Diff([]v1alpha1.FabricRoute{routeText(moved)}, record), cmp.Diff([]v1alpha1.FabricRoute{routeText(moved), routeText(a)}, before),
	} {
		if d != "" {
			t.Error(d)
		}
	}
}

// A node's own word opens no port of another machine: neither an unconfirmed address,
// nor one in a network of the configuration, if the port is another machine's.
func TestPortOfAnotherMachine(t *testing.T) {
	addr := netip.MustParseAddr
	port := func(id, device, address string) cloud.Port {
		return cloud.Port{ID: id, DeviceID: device, Addresses: []cloud.Address{{Addr: addr(address)}}}
	}
	all := []cloud.Port{port("mine", "m1", "192.0.2.1"), port("second", "m1", "192.0.2.101"), port("victim", "m2", "192.0.2.2")}
	for _, tc := range []struct {
		name              string
		underlay, says    []string
		machine           string
		taken             map[string]string
		want, problemPart string
	}{
		{name: "the address of its Node", underlay: []string{"192.0.2.1/32"}, says: []string{"192.0.2.1/24"}, want: "mine"},
		{name: "the port that other nodes use", underlay: []string{"192.0.2.1/32", "192.0.2.101/32"}, says: []string{"192.0.2.101/24"}, machine: "m1", want: "second"},
		{name: "an address that nobody confirmed", underlay: []string{"192.0.2.1/32"}, says: []string{"192.0.2.2/24"}, want: "mine"},
		{name: "a network of the configuration, without a machine", underlay: []string{"192.0.2.0/24"}, says: []string{"192.0.2.2/24"}, problemPart: "no port that"},
		{name: "a network of the configuration, of another machine", underlay: []string{"192.0.2.0/24"}, says: []string{"192.0.2.2/24"}, machine: "m1", problemPart: "machine m1 has no port"},
		{name: "a network of the configuration, of its machine", underlay: []string{"192.0.2.0/24"}, says: []string{"192.0.2.1/24"}, machine: "m1", want: "mine"},
		{name: "the address of another machine, by its Node", underlay: []string{"192.0.2.2/32"}, machine: "m1", problemPart: "machine m1 has no port"},
		{name: "the port of another node", underlay: []string{"192.0.2.2/32"}, taken: map[string]string{"victim": "n2"}, problemPart: "that of node n2"},
		{name: "nothing known", problemPart: "no port that"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nn := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{Underlay: tc.underlay}, Status: v1alpha1.NodeNetworkStatus{Addresses: tc.says}}
			p, err := choosePort(all, tc.machine, addressesOf(nn, tc.machine))
			got, err := unlessTaken(p, err, tc.taken)
			wantError(t, err, tc.problemPart)
			if got.ID != tc.want {
				t.Errorf("port %q, want %q", got.ID, tc.want)
			}
		})
	}
}

func FuzzRanges(f *testing.F) {
	for _, s := range []string{"10.0.0.0/24", "10.0.0.1-10.0.0.9", "fd00::1-fd00::ff/64", "-", "/", "10.0.0.1-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, err := ends(s)
		if err != nil {
			return
		}
		all := cidr.Between(first, last)
		if all[0].Addr() != first || cidr.Last(all[len(all)-1]) != last {
			t.Errorf("%q is covered by %v", s, all)
		}
	})
}
