package hostnet

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/test/nodetest"
)

// uplinkAt is an uplink of 1500 bytes with these addresses.
func uplinkAt(addresses ...string) host.Uplink {
	up := host.Uplink{Name: "eth0", MTU: 1500}
	for _, a := range addresses {
		p := netip.MustParsePrefix(a)
		up.Addresses, up.Sources = append(up.Addresses, p), append(up.Sources, p.Addr())
	}
	return up
}

// remoteNode is a node behind the tunnel, with its blocks.
func remoteNode(name, underlay string, blocks ...string) host.RemoteNode {
	n := host.RemoteNode{Underlay: netip.MustParseAddr(underlay), MAC: host.TunnelMAC(name)}
	for _, b := range blocks {
		n.Blocks = append(n.Blocks, netip.MustParsePrefix(b))
	}
	return n
}

func TestPlanTunnel(t *testing.T) {
	const v4, v6 = "10.244.2.0/26", "fd00:10:244:2::/122"
	peer := func(block, via string) host.PeerBlock {
		return host.PeerBlock{Prefix: netip.MustParsePrefix(block), Via: netip.MustParseAddr(via)}
	}
	cases := []struct {
		name     string
		mode     Encapsulation
		up       host.Uplink
		others   []*v1alpha1.NodeNetwork
		mtu      int
		both     bool // blocks of both families, not of IPv4 alone
		peers    []host.PeerBlock
		remote   []host.RemoteNode
		problems []string
	}{
		{
			name: "auto, on one link", mode: EncapsulationAuto, up: uplinkAt("192.168.77.11/24"), mtu: 1450,
			others: []*v1alpha1.NodeNetwork{nodetest.Tunnelled("n2", []string{v4}, []string{"192.168.77.12/24"})},
			peers:  []host.PeerBlock{peer(v4, "192.168.77.12")},
		},
		{
			name: "auto, on two links", mode: EncapsulationAuto, up: uplinkAt("192.168.77.11/24"), mtu: 1450,
			others: []*v1alpha1.NodeNetwork{
				nodetest.Tunnelled("n2", []string{v4, "10.244.2.64/26"}, []string{"192.168.78.12/24"}),
				nodetest.Tunnelled("n3", []string{"10.244.3.0/26"}, []string{"192.168.77.13/24"}),
			},
			peers:  []host.PeerBlock{peer("10.244.3.0/26", "192.168.77.13")},
			remote: []host.RemoteNode{remoteNode("n2", "192.168.78.12", v4, "10.244.2.64/26")},
		},
		{
			name: "vxlan, on one link", mode: EncapsulationVXLAN, up: uplinkAt("192.168.77.11/24"), mtu: 1450,
			others: []*v1alpha1.NodeNetwork{
				nodetest.Tunnelled("n2", []string{v4}, []string{"192.168.77.12/24"}),
				nodetest.NodeNetwork("n3", []string{"10.244.3.0/26"}, []string{"192.168.77.13/24"}), // does not encapsulate yet
			},
			peers:  []host.PeerBlock{peer("10.244.3.0/26", "192.168.77.13")},
			remote: []host.RemoteNode{remoteNode("n2", "192.168.77.12", v4)},
		},
		{
			name: "pods of a family that the underlay lacks", mode: EncapsulationAuto, up: uplinkAt("192.168.77.11/24"), mtu: 1450, both: true,
			others: []*v1alpha1.NodeNetwork{nodetest.Tunnelled("n2", []string{v4, v6}, []string{"192.168.77.12/24"})},
			peers:  []host.PeerBlock{peer(v4, "192.168.77.12")},
			remote: []host.RemoteNode{remoteNode("n2", "192.168.77.12", v6)},
		},
		{
			name: "IPv6 only", mode: EncapsulationAuto, up: uplinkAt("fd00:77::11/64"), mtu: 1430, both: true,
			others: []*v1alpha1.NodeNetwork{
				nodetest.Tunnelled("n2", []string{v4, v6}, []string{"fd00:77::12/64"}),
				nodetest.Tunnelled("n3", []string{"fd00:10:244:3::/122"}, []string{"fd00:78::13/64"}),
			},
			peers: []host.PeerBlock{peer(v6, "fd00:77::12")},
			remote: []host.RemoteNode{
				remoteNode("n2", "fd00:77::12", v4), remoteNode("n3", "fd00:78::13", "fd00:10:244:3::/122"),
			},
		},
		{
			name: "each family by its own", mode: EncapsulationAuto, up: uplinkAt("192.168.77.11/24", "fd00:77::11/64"), mtu: 1430, both: true,
			others: []*v1alpha1.NodeNetwork{
				nodetest.Tunnelled("n2", []string{v4, v6}, []string{"192.168.78.12/24", "fd00:78::12/64"}),
				nodetest.Tunnelled("n3", []string{"10.244.3.0/26", "fd00:10:244:3::/122"}, []string{"fd00:78::13/64"}),
				nodetest.Tunnelled("n4", []string{"10.244.4.0/26", "fd00:10:244:4::/122"}, []string{"192.168.77.14/24"}),
			},
			peers: []host.PeerBlock{peer("10.244.4.0/26", "192.168.77.14")},
			remote: []host.RemoteNode{
				remoteNode("n2", "192.168.78.12", v4), remoteNode("n2", "fd00:78::12", v6),
				remoteNode("n3", "fd00:78::13", "10.244.3.0/26", "fd00:10:244:3::/122"),
				remoteNode("n4", "192.168.77.14", "fd00:10:244:4::/122"),
			},
		},
		{
			name: "none", mode: EncapsulationNone, up: uplinkAt("192.168.77.11/24"), mtu: 1500,
			others:   []*v1alpha1.NodeNetwork{nodetest.Tunnelled("n2", []string{v4}, []string{"192.168.78.12/24"})},
			problems: []string{"node n2 is not on a shared link, and this node does not encapsulate (encapsulation is none)"},
		},
		{
			name: "each peer's trouble is its own", mode: EncapsulationAuto, up: uplinkAt("192.168.77.11/24"), mtu: 1450,
			others: []*v1alpha1.NodeNetwork{
				nodetest.NodeNetwork("n2", []string{v4}, []string{"192.168.78.12/24"}),
				nodetest.Tunnelled("n3", []string{"10.244.3.0/26"}, []string{"fd00:78::13/64"}),
				nodetest.Tunnelled("n4", []string{"10.244.4.0/26"}, []string{"192.168.78.14/24"}),
				nodetest.Tunnelled("n5", []string{"10.244.5.0/26"}, []string{"192.168.77.11/24"}),
			},
			remote: []host.RemoteNode{remoteNode("n4", "192.168.78.14", "10.244.4.0/26")},
			problems: []string{
				"node n2 is not on a shared link, and takes nothing encapsulated",
				"node n3 has no address of a family that this node has",
				"node n5 says that it has the address 192.168.77.11, which is this node's",
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := config{encapsulation: tc.mode, vni: 7, port: 8472}
			own := nodetest.NodeNetwork("n1", nil, nil)
			all := []v1alpha1.NodeNetwork{*own}
			for _, nn := range tc.others {
				all = append(all, *nn)
			}
			got, problems := planHost(c, own, all, tc.up)
			want := host.State{
				Uplink: "eth0", IPv4: true, IPv6: tc.both, Peers: tc.peers, Remote: tc.remote,
			}
			if mtu := c.podMTU(tc.up); mtu != tc.mtu {
				t.Errorf("MTU of pods %d, want %d", mtu, tc.mtu)
			}
			want.Sources = tc.up.Sources
			if tc.mode != EncapsulationNone {
				want.Tunnel = &host.Tunnel{VNI: 7, Port: 8472, MAC: host.TunnelMAC("n1"), MTU: 1500}
				for _, a := range tc.up.Addresses {
					want.Tunnel.Underlay = append(want.Tunnel.Underlay, a.Addr())
				}
			}
			if diff := cmp.Diff(want, got, nodetest.SameAddresses, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A node that reports the address or MAC of another node, or malformed values, gets no
// packets that are for others, and does not affect the routes to others.
func TestPlanTunnelTrustsNobody(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	born := func(nn *v1alpha1.NodeNetwork, age time.Duration) *v1alpha1.NodeNetwork {
		nn.CreationTimestamp = metav1.NewTime(now.Add(-age))
		return nn
	}
	victim := born(nodetest.Tunnelled("n5", []string{"10.244.5.0/26"}, []string{"192.168.78.15/24"}), time.Hour)
	for _, tc := range []struct {
		name    string
		change  func(nn *v1alpha1.NodeNetwork)
		problem string
	}{
		{"another's address", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Addresses = victim.Status.Addresses
		}, "node n2 says that it has the address 192.168.78.15, which is that of node n5"},
		{"another's MAC", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Tunnel = victim.Status.Tunnel
		}, fmt.Sprintf("node n2 says that its tunnel has the MAC %s, and that of a node of this name is %s", victim.Status.Tunnel.MAC, host.TunnelMAC("n2"))},
		{"this node's MAC", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Tunnel.MAC = host.TunnelMAC("n1").String()
		}, fmt.Sprintf("node n2 says that its tunnel has the MAC %s, and that of a node of this name is %s", host.TunnelMAC("n1"), host.TunnelMAC("n2"))},
		{"a MAC of many", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Tunnel.MAC = "ff:ff:ff:ff:ff:ff"
		}, `node n2 has a tunnel with the MAC "ff:ff:ff:ff:ff:ff": must be the MAC of one station, not "ff:ff:ff:ff:ff:ff"`},
		{"no MAC", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Tunnel.MAC = "x"
		}, `node n2 has a tunnel with the MAC "x": address x: invalid MAC address`},
		{"multicast", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Addresses = []string{"224.0.0.1/24"}
		}, "node n2 has not written its addresses yet"},
		{"loopback", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Addresses = []string{"127.0.0.1/8", "::1/128"}
		}, "node n2 has not written its addresses yet"},
		{"IPv4 in IPv6", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Addresses = []string{"::ffff:192.168.78.12/120"}
		}, "node n2 has not written its addresses yet"},
		{"everything", func(nn *v1alpha1.NodeNetwork) {
			nn.Spec.Blocks = []string{"0.0.0.0/0"}
		}, `node n2 has block "0.0.0.0/0": must be in CIDR form, and not the whole address space`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			liar := born(nodetest.Tunnelled("n2", []string{"10.244.2.0/26"}, []string{"192.168.78.12/24"}), time.Minute)
			tc.change(liar)
			if strings.Contains(tc.name, "MAC") { // age proves nothing: the MAC follows from the name
				born(liar, 3*time.Hour)
			}
			own := born(nodetest.Tunnelled("n1", nil, nil), 2*time.Hour)
			got, problems := planHost(config{encapsulation: EncapsulationAuto, vni: 1, port: 1}, own,
				[]v1alpha1.NodeNetwork{*liar, *own, *victim}, uplinkAt("192.168.77.11/24"))
			want := []host.RemoteNode{remoteNode("n5", "192.168.78.15", "10.244.5.0/26")}
			if diff := cmp.Diff(want, got.Remote, nodetest.SameAddresses); diff != "" || len(got.Peers) > 0 {
				t.Errorf("peers %v, remote (-want +got):\n%s", got.Peers, diff)
			}
			if diff := cmp.Diff([]string{tc.problem}, problems); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzPlanHost checks that package host accepts the plan, whatever another node writes
// into its status.
func FuzzPlanHost(f *testing.F) {
	f.Add("10.244.2.0/26", "192.168.78.12/24", "fd00:78::12/64", "02:00:00:00:00:01")
	f.Add("::/0", "::ffff:1.2.3.4/96", "fe80::1/64", "01:00:00:00:00:01")
	f.Fuzz(func(t *testing.T, block, first, second, mac string) {
		liar := nodetest.NodeNetwork("n2", []string{block, "10.244.3.0/26"}, []string{first, second})
		liar.Status.Tunnel = &v1alpha1.Tunnel{MAC: mac}
		own := nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil)
		for _, mode := range []Encapsulation{EncapsulationNone, EncapsulationAuto, EncapsulationVXLAN} {
			want, _ := planHost(config{encapsulation: mode, vni: 1, port: 1}, own,
				[]v1alpha1.NodeNetwork{*own, *liar}, uplinkAt("192.168.77.11/24", "fd00:77::11/64"))
			if err := want.Validate(); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
		}
	})
}

// BenchmarkPlanHost measures the cost of a change to any NodeNetwork on each node: the
// plan for a cluster of 5,000 nodes, half of them on the node's link, and its comparison
// with the previous plan.
func BenchmarkPlanHost(b *testing.B) {
	const nodes = 5000
	var all []v1alpha1.NodeNetwork
	for i := range nodes {
		block := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		address := netip.AddrFrom4([4]byte{172, byte(16 + i%2), byte(i >> 8), byte(i)})
		all = append(all, *nodetest.Tunnelled(fmt.Sprint("node-", i), []string{netip.PrefixFrom(block, 26).String()}, []string{netip.PrefixFrom(address, 16).String()}))
	}
	c := config{encapsulation: EncapsulationAuto, vni: 158, port: 4789}
	up := uplinkAt(all[0].Status.Addresses...)
	before, problems := planHost(c, &all[0], all, up)
	if len(problems) > 0 || len(before.Peers)+len(before.Remote) != nodes-1 {
		b.Fatalf("%d peers, %d remote, %v", len(before.Peers), len(before.Remote), problems)
	}
	b.ReportAllocs()
	for b.Loop() {
		if want, _ := planHost(c, &all[0], all, up); !reflect.DeepEqual(want, before) {
			b.Fatal("another plan")
		}
	}
}
