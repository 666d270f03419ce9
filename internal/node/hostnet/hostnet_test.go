package hostnet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestPlanHost(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	up4 := host.Uplink{Name: "eth0", MTU: 1500, Addresses: []netip.Prefix{prefix("192.168.77.11/24")}, Sources: []netip.Addr{netip.MustParseAddr("192.168.77.11")}}
	up46 := up4
	up46.Addresses = append(up46.Addresses[:1:1], prefix("fd00:77::11/64"))
	up46.Sources = append(up46.Sources[:1:1], addr("fd00:77::11"))
	state := func(families string, local []netip.Prefix, peers ...host.PeerBlock) host.State {
		return host.State{Uplink: "eth0", IPv4: strings.Contains(families, "4"), IPv6: strings.Contains(families, "6"), Local: local, Peers: peers}
	}
	own := []netip.Prefix{prefix("10.244.1.0/26")}
	cases := []struct {
		name     string
		up       host.Uplink
		own      *v1alpha1.NodeNetwork
		others   []v1alpha1.NodeNetwork
		want     host.State
		problems []string
	}{
		{name: "alone, without a block", up: up4, own: nodetest.NodeNetwork("n1", nil, nil), want: state("", nil)},
		{name: "alone", up: up4, own: nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil), want: state("4", own)},
		{
			name: "a family that only others have yet", up: up46, own: nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil),
			others: []v1alpha1.NodeNetwork{*nodetest.NodeNetwork("n2", []string{"fd00:10:244:2::/122"}, []string{"fd00:77::12/64"})},
			want:   state("46", own, host.PeerBlock{Prefix: prefix("fd00:10:244:2::/122"), Via: addr("fd00:77::12")}),
		},
		{
			name: "both families", up: up46, own: nodetest.NodeNetwork("n1", []string{"10.244.1.0/26", "fd00:10:244:1::/122"}, nil),
			others: []v1alpha1.NodeNetwork{
				*nodetest.NodeNetwork("n2", []string{"10.244.2.0/26", "fd00:10:244:2::/122"}, []string{"192.168.77.12/24", "fd00:77::12/64"}),
			},
			want: state("46",
				append(own[:1:1], prefix("fd00:10:244:1::/122")),
				host.PeerBlock{Prefix: prefix("10.244.2.0/26"), Via: addr("192.168.77.12")},
				host.PeerBlock{Prefix: prefix("fd00:10:244:2::/122"), Via: addr("fd00:77::12")},
			),
		},
		{
			name: "an IPv6 block on a node without IPv6", up: up4, own: nodetest.NodeNetwork("n1", []string{"fd00:10:244:1::/122"}, nil),
			want: state("6", []netip.Prefix{prefix("fd00:10:244:1::/122")}),
		},
		{
			name: "each peer's trouble is its own", up: up4, own: nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil),
			others: []v1alpha1.NodeNetwork{
				*nodetest.NodeNetwork("n6", []string{"10.244.6.0/26"}, []string{"192.168.77.16/24"}),
				*nodetest.NodeNetwork("n2", []string{"10.244.2.0/26"}, []string{"192.168.78.12/24"}),
				*nodetest.NodeNetwork("n3", []string{"10.244.3.0/26"}, nil),
				*nodetest.NodeNetwork("n4", nil, nil),
				*nodetest.NodeNetwork("n5", []string{"10.244.5.0/26"}, []string{"192.168.77.11/24"}),
				*nodetest.NodeNetwork("n7", []string{"fd00:10:244:7::/122", "10.244.7.0/26"}, []string{"192.168.77.17/24"}),
			},
			want: state("46", own,
				host.PeerBlock{Prefix: prefix("10.244.6.0/26"), Via: addr("192.168.77.16")},
				host.PeerBlock{Prefix: prefix("10.244.7.0/26"), Via: addr("192.168.77.17")}),
			problems: []string{
				"node n2 is not on a shared link, and this node does not encapsulate (encapsulation is none)",
				"node n3 has not written its addresses yet",
				"node n5 says that it has the address 192.168.77.11, which is this node's",
				"node n7 is not on a shared link, and this node does not encapsulate (encapsulation is none)",
			},
		},
		{
			name: "blocks that are none", up: up4, own: nodetest.NodeNetwork("n1", []string{"x", "10.244.1.0/26"}, nil),
			others:   []v1alpha1.NodeNetwork{*nodetest.NodeNetwork("n2", []string{"y"}, []string{"192.168.77.12/24"})},
			want:     state("4", own),
			problems: []string{`block "x" of this node: must be in CIDR form, and not the whole address space`, `node n2 has block "y": must be in CIDR form, and not the whole address space`},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := planHost(config{encapsulation: EncapsulationNone}, tc.own, append(tc.others, *tc.own), tc.up)
			tc.want.Sources = tc.up.Sources
			if diff := cmp.Diff(tc.want, got, nodetest.SameAddresses, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Error(diff)
			}
		})
	}
}
