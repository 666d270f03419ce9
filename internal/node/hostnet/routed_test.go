package hostnet

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/node/direct"
	"fairlead.dev/fairlead/test/nodetest"
)

// setRouted records that the cloud's router has routes to prefixes of a node.
func setRouted(nn *v1alpha1.NodeNetwork, ready metav1.ConditionStatus, prefixes ...string) {
	nn.Spec.Fabric = &v1alpha1.Fabric{Routed: prefixes, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionFabricReady, Status: ready}}}
}

// apartNodes returns two nodes in different subnets, with two blocks of IPv4 and one of
// IPv6 each.
func apartNodes() (a, b *v1alpha1.NodeNetwork) {
	a = nodetest.Tunnelled("a", []string{"10.244.1.0/26", "10.244.1.64/26", "fd00:10:244:1::/122"}, []string{"192.0.2.11/24", "fd00:1::11/64"})
	b = nodetest.Tunnelled("b", []string{"10.244.2.0/26", "10.244.2.64/26", "fd00:10:244:2::/122"}, []string{"198.51.100.12/24", "fd00:2::12/64"})
	return a, b
}

// uplinkOf returns the uplink of a node with a default gateway for each family.
func uplinkOf(nn *v1alpha1.NodeNetwork) host.Uplink {
	up := uplinkAt(nn.Status.Addresses...)
	for _, a := range up.Addresses {
		up.Gateways = append(up.Gateways, a.Masked().Addr().Next())
	}
	return up
}

// Nodes in different subnets use the router for the blocks to which it has routes, if it has
// routes to blocks of both. Both decide alike, so that no answer takes another way.
func TestRoutedByTheCloud(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for _, tc := range []struct {
		name   string
		change func(a, b *v1alpha1.NodeNetwork, c *config)
		// fromA and fromB are the blocks that are reached by the router.
		fromA, fromB []string
		loose        bool
	}{
		{
			name: "all routes", change: func(a, b *v1alpha1.NodeNetwork, _ *config) {},
			fromA: b4b6, fromB: a4a6,
		},
		{name: "no tunnel", change: func(_, _ *v1alpha1.NodeNetwork, c *config) { c.encapsulation = EncapsulationNone }, fromA: b4b6, fromB: a4a6},
		{name: "always the tunnel", change: func(_, _ *v1alpha1.NodeNetwork, c *config) { c.encapsulation = EncapsulationVXLAN }},
		{name: "no fabric", change: func(a, b *v1alpha1.NodeNetwork, _ *config) { a.Spec.Fabric, b.Spec.Fabric = nil, nil }},
		{name: "one node has no routes", change: func(_, b *v1alpha1.NodeNetwork, _ *config) { setRouted(b, yes) }},
		{name: "the routes of one node are at the limit", change: func(_, b *v1alpha1.NodeNetwork, _ *config) { setRouted(b, no, "10.244.2.0/25", "fd00:10:244:2::/122") }},
		{
			name: "no routes of IPv6", change: func(_, b *v1alpha1.NodeNetwork, _ *config) { setRouted(b, yes, "10.244.2.0/25") },
			fromA: []string{"10.244.2.0/26", "10.244.2.64/26"}, fromB: []string{"10.244.1.0/26", "10.244.1.64/26"},
		},
		{
			name: "a new block has no route yet", change: func(_, b *v1alpha1.NodeNetwork, _ *config) { setRouted(b, yes, "10.244.2.0/26", "fd00:10:244:2::/122") },
			fromA: []string{"10.244.2.0/26", "fd00:10:244:2::/122"}, fromB: a4a6, loose: true,
		},
		{name: "the router drops packets", change: func(a, _ *v1alpha1.NodeNetwork, _ *config) { a.Status.Dropped = []string{"*routed"} }, loose: true},
		{name: "the way to one node drops packets", change: func(_, b *v1alpha1.NodeNetwork, _ *config) { b.Status.Dropped = []string{"a"} }, loose: true},
		{
			name: "the prefixes are unusable", change: func(_, b *v1alpha1.NodeNetwork, _ *config) {
				b.Spec.Fabric.Routed = []string{"0.0.0.0/0", "x"}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := apartNodes()
			setRouted(a, yes, "10.244.1.0/25", "fd00:10:244:1::/122")
			setRouted(b, yes, "10.244.2.0/25", "fd00:10:244:2::/122")
			c := config{encapsulation: EncapsulationAuto, vni: 158, port: 4789}
			tc.change(a, b, &c)
			for _, side := range []struct {
				own  *v1alpha1.NodeNetwork
				want []string
			}{{a, tc.fromA}, {b, tc.fromB}} {
				c.dropped = side.own.Status.Dropped
				up := uplinkOf(side.own)
				got, problems := planHost(c, side.own, []v1alpha1.NodeNetwork{*a, *b}, up)
				var by []string
				for _, p := range got.Peers {
					by = append(by, p.Prefix.String())
					if p.Via != up.Gateways[0] && p.Via != up.Gateways[1] {
						t.Errorf("node %s: %v via %v, want a gateway", side.own.Name, p.Prefix, p.Via)
					}
				}
				if diff := cmp.Diff(side.want, by, cmpopts.EquateEmpty()); diff != "" || len(problems) > 0 {
					t.Errorf("node %s: by the router: %s, problems %v", side.own.Name, diff, problems)
				}
				through := 0
				for _, r := range got.Remote {
					through += len(r.Blocks)
				}
				if through+len(by) != 3 {
					t.Errorf("node %s: %d blocks through the tunnel, %d by the router", side.own.Name, through, len(by))
				}
				if want := tc.loose && through > 0; got.Loose != want {
					t.Errorf("node %s: loose %v", side.own.Name, got.Loose)
				}
			}
		})
	}
}

var (
	a4a6 = []string{"10.244.1.0/26", "10.244.1.64/26", "fd00:10:244:1::/122"}
	b4b6 = []string{"10.244.2.0/26", "10.244.2.64/26", "fd00:10:244:2::/122"}
)

// A node uses the tunnel without a default gateway, and while the controller does not confirm
// its address.
func TestNoWayToTheRouter(t *testing.T) {
	a, b := apartNodes()
	setRouted(a, metav1.ConditionTrue, "10.244.1.0/25")
	setRouted(b, metav1.ConditionTrue, "10.244.2.0/25")
	c := config{encapsulation: EncapsulationAuto, vni: 158, port: 4789}
	if got, _ := planHost(c, a, []v1alpha1.NodeNetwork{*a, *b}, uplinkAt(a.Status.Addresses...)); len(got.Peers) > 0 {
		t.Errorf("without a gateway: %v", got.Peers)
	}
	b.Spec.Underlay = []string{"203.0.113.1/32"}
	if got, problems := planHost(c, a, []v1alpha1.NodeNetwork{*a, *b}, uplinkOf(a)); len(got.Peers)+len(got.Remote) > 0 || len(problems) != 1 {
		t.Errorf("an address that is not confirmed: %v, %v, problems %v", got.Peers, got.Remote, problems)
	}
}

// Nodes in other subnets are probed while the router has routes to them.
func TestRoutedLinks(t *testing.T) {
	a, b := apartNodes()
	setRouted(a, metav1.ConditionTrue, "10.244.1.0/25")
	setRouted(b, metav1.ConditionTrue, "10.244.2.0/25")
	a.Status.Dropped = []string{"*"}
	got := directLinks(EncapsulationAuto, a, []v1alpha1.NodeNetwork{*a, *b}, uplinkOf(a))
	want := []direct.Peer{{Name: "b", Routed: true, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.12")}}}
	if diff := cmp.Diff(want, got.Peers, nodetest.SameAddresses); diff != "" {
		t.Error(diff)
	}
	setRouted(b, metav1.ConditionFalse, "10.244.2.0/25")
	if got := directLinks(EncapsulationAuto, a, []v1alpha1.NodeNetwork{*a, *b}, uplinkOf(a)); len(got.Peers) > 0 {
		t.Errorf("without routes: %v", got.Peers)
	}
}
