package hostnet

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/node/direct"
	"fairlead.dev/fairlead/test/nodetest"
)

// Two nodes of a link use the tunnel if either says that packets are dropped, and both
// decide alike.
func TestDroppedByEitherSide(t *testing.T) {
	for _, tc := range []struct {
		name          string
		encapsulation Encapsulation
		mine, theirs  []string
		tunnelled     bool
	}{
		{"nobody", EncapsulationAuto, nil, nil, false},
		{"this node", EncapsulationAuto, []string{"b"}, nil, true},
		{"this node to all", EncapsulationAuto, []string{"*"}, nil, true},
		{"the other", EncapsulationAuto, nil, []string{"a"}, true},
		{"the other to all", EncapsulationAuto, nil, []string{"*"}, true},
		{"about a third node", EncapsulationAuto, []string{"c"}, []string{"c"}, false},
		{"without a tunnel", EncapsulationNone, []string{"b"}, []string{"a"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := map[string]*v1alpha1.NodeNetwork{
				"a": nodetest.NodeNetwork("a", []string{"10.244.1.0/26"}, []string{"192.168.77.11/24"}),
				"b": nodetest.NodeNetwork("b", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"}),
			}
			nodes["a"].Status.Dropped, nodes["b"].Status.Dropped = tc.mine, tc.theirs
			var all []v1alpha1.NodeNetwork
			for name, nn := range nodes {
				nn.Status.Tunnel = &v1alpha1.Tunnel{MAC: host.TunnelMAC(name).String()}
				all = append(all, *nn)
			}
			for name, at := range map[string]string{"a": "192.168.77.11/24", "b": "192.168.77.12/24"} {
				c := config{encapsulation: tc.encapsulation, vni: 158, port: 4789, dropped: nodes[name].Status.Dropped}
				got, problems := planHost(c, nodes[name], all, uplinkAt(at))
				if tunnelled := len(got.Remote) == 1 && len(got.Peers) == 0; tunnelled != tc.tunnelled || got.Loose != tc.tunnelled || len(problems) > 0 {
					t.Errorf("node %s: peers %v, remote %v, loose %v, %v", name, got.Peers, got.Remote, got.Loose, problems)
				}
			}
		})
	}
}

// Only confirmed addresses on the uplink's link are probed, and no node has this node
// probe its own address.
func TestDirectLinks(t *testing.T) {
	own := nodetest.ConfirmedNetwork("n1", "10.244.1.0/26", []string{"192.168.77.11/24"}, []string{"192.168.77.11/32"})
	own.Spec.Blocks = append(own.Spec.Blocks, "10.244.1.64/26", "fd00:10:244:1::/122")
	all := []v1alpha1.NodeNetwork{
		*own,
		*nodetest.ConfirmedNetwork("good", "10.244.2.0/26", []string{"192.168.77.12/24"}, []string{"192.168.77.12/32"}),
		*nodetest.ConfirmedNetwork("doubted", "10.244.3.0/26", []string{"192.168.77.13/24"}, []string{}),
		*nodetest.ConfirmedNetwork("off-link", "10.244.4.0/26", []string{"192.168.78.14/24"}, []string{"192.168.78.14/32"}),
		*nodetest.ConfirmedNetwork("mirror", "10.244.5.0/26", []string{"192.168.77.11/24"}, []string{"192.168.77.11/32"}),
		*nodetest.NodeNetwork("no-pods", nil, []string{"192.168.77.16/24"}),
		*nodetest.NodeNetwork("nonsense", []string{"10.244.7.0/26"}, []string{"x", "::ffff:1.2.3.4/96"}),
	}
	addr := netip.MustParseAddr
	want := direct.Links{
		Own: []netip.Addr{addr("192.168.77.11")}, Pods: []netip.Addr{addr("10.244.1.0"), addr("fd00:10:244:1::")},
		Peers: []direct.Peer{{Name: "good", Addresses: []netip.Addr{addr("192.168.77.12")}}},
	}
	got := directLinks(EncapsulationAuto, own, all, uplinkAt("192.168.77.11/24"))
	if diff := cmp.Diff(want, got, nodetest.SameAddresses); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(direct.Links{}, directLinks(EncapsulationVXLAN, own, all, uplinkAt("192.168.77.11/24")), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}
