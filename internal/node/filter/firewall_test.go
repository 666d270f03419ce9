package filter

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestPlanFilter(t *testing.T) {
	network := func(name string, blocks, addresses []string) v1alpha1.NodeNetwork {
		return v1alpha1.NodeNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeNetworkSpec{Blocks: blocks},
			Status: v1alpha1.NodeNetworkStatus{Addresses: addresses},
		}
	}
	all := []v1alpha1.NodeNetwork{
		network("n1", []string{"10.244.1.0/26", "nonsense"}, []string{"192.168.77.11/24"}),
		network("n2", []string{"10.244.2.0/26"}, []string{"192.168.77.12/24", "?"}),
	}
	got := planFilter(Masquerade{Enabled: true, Exclude: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}}, &all[0], all)
	prefixes := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	want := nft.Node{
		Masquerade: true, Local: prefixes("10.244.1.0/26"),
		Cluster: prefixes("172.16.0.0/12", "10.244.1.0/26", "192.168.77.11/32", "10.244.2.0/26", "192.168.77.12/32"),
		Peers:   []netip.Addr{netip.MustParseAddr("192.168.77.12")},
	}
	if diff := cmp.Diff(want, got, nodetest.SameAddresses); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An address that the controller has not confirmed is not part of the cluster: the packet
// filter accepts no encapsulated packets from it, and masquerades traffic to it.
func TestPlanFilterBelievesWhatIsConfirmed(t *testing.T) {
	own := nodetest.ConfirmedNetwork("n1", "10.244.1.0/26", []string{"192.168.77.11/24"}, []string{"192.168.77.11/32"})
	for _, tc := range []struct {
		name  string
		other *v1alpha1.NodeNetwork
		peers []string
	}{
		{"an address outside", nodetest.ConfirmedNetwork("evil", "10.244.9.0/26", []string{"8.8.8.8/32"}, []string{"192.168.79.9/32"}), nil},
		{"nothing confirmed", nodetest.ConfirmedNetwork("evil", "10.244.9.0/26", []string{"8.8.8.8/32", "2001:db8::8/64"}, []string{}), nil},
		{"by a controller that confirms nothing", nodetest.ConfirmedNetwork("old", "10.244.9.0/26", []string{"192.168.79.9/24"}, nil), []string{"192.168.79.9"}},
		{"in a network of the configuration", nodetest.ConfirmedNetwork("second", "10.244.9.0/26", []string{"192.168.79.9/24"}, []string{"192.168.79.0/24"}), []string{"192.168.79.9"}},
		{
			"one family of two", nodetest.ConfirmedNetwork("half", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32"}),
			[]string{"192.168.79.9"},
		},
		{
			"both families", nodetest.ConfirmedNetwork("both", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32", "fd00:79::9/128"}),
			[]string{"192.168.79.9", "fd00:79::9"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := planFilter(Masquerade{Enabled: true}, own, []v1alpha1.NodeNetwork{*own, *tc.other})
			var peers []string
			for _, p := range f.Peers {
				peers = append(peers, p.String())
			}
			if diff := cmp.Diff(tc.peers, peers); diff != "" {
				t.Errorf("peers (-want +got):\n%s", diff)
			}
			for _, p := range f.Cluster {
				if p.Contains(netip.MustParseAddr("8.8.8.8")) {
					t.Errorf("traffic to %v is not masqueraded", p)
				}
			}
		})
	}
}

// The binding of an interface decides how far its packets are checked. An interface
// without a link on the host is not in the packet filter, nor is a port of Open vSwitch.
func TestFilterPodChecks(t *testing.T) {
	add := &ledger.Add{}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	of := func(hostLink string, b v1alpha1.Binding) {
		i := ledger.Interface{Made: plug.Made{HostLink: hostLink}}
		i.Name, i.MAC, i.Binding = "net1", mac.String(), b
		add.Interfaces = append(add.Interfaces, i)
	}
	for _, c := range []v1alpha1.SourceCheck{"", v1alpha1.SourceFull, v1alpha1.SourceMAC, v1alpha1.SourceNone, "Later"} {
		of("fl"+string(c), v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1", SourceCheck: c}})
	}
	of("fltrunk", v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1", Trunk: []v1alpha1.VLANRange{{Min: 5, Max: 5}}}})
	of("fllost", v1alpha1.Binding{})
	of("", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{}})
	of("flovs", v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{}})
	add.Interfaces[len(add.Interfaces)-1].Made.Kind = plug.KindOVS
	want := []nft.Link{
		{Name: "fl", MAC: mac},
		{Name: "flFull", MAC: mac},
		{Name: "flMAC", MAC: mac, Check: nft.CheckMAC},
		{Name: "flNone", MAC: mac, Check: nft.CheckNone},
		{Name: "flLater", MAC: mac},
		{Name: "fltrunk", MAC: mac, Tagged: true},
		{Name: "fllost", Check: nft.CheckLost},
	}
	if diff := cmp.Diff(want, filterPod("c1", add).Links); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The rules of a sandbox have an interface that it gets, and none that it loses.
func TestFilterPodOfChanges(t *testing.T) {
	of := func(link string, state ledger.State) ledger.Interface {
		return ledger.Interface{Made: plug.Made{HostLink: link}, State: state}
	}
	var got []string
	for _, l := range filterPod("c1", &ledger.Add{Interfaces: []ledger.Interface{of("h0", ""), of("h1", ledger.Attaching), of("h2", ledger.Deleting), of("h3", "")}}).Links {
		got = append(got, l.Name)
	}
	if diff := cmp.Diff([]string{"h0", "h1", "h3"}, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
