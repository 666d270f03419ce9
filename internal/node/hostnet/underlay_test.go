package hostnet

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/test/nodetest"
)

// A compromised node writes any address into its status. The other nodes send no packets
// there, and answers to it are masqueraded as before (own review 12).
func TestOnlyConfirmedAddressesAreUsed(t *testing.T) {
	const doubt = ", which neither its Node nor underlayCIDRs in the controller's configuration confirms"
	age := func(nn *v1alpha1.NodeNetwork, age time.Duration) *v1alpha1.NodeNetwork {
		nn.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
		return nn
	}
	good := age(nodetest.ConfirmedNetwork("n2", "10.244.2.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.12/32"}), time.Minute)
	for _, tc := range []struct {
		name     string
		up, own  []string
		other    *v1alpha1.NodeNetwork
		remote   []host.RemoteNode // in addition to the good node
		peers    []string          // the believed addresses of the other node
		problems []string
	}{
		{
			name:     "an address outside",
			other:    nodetest.ConfirmedNetwork("evil", "10.244.9.0/26", []string{"8.8.8.8/32"}, []string{"192.168.79.9/32"}),
			problems: []string{"node evil says that it has the address 8.8.8.8" + doubt},
		},
		{
			name:     "nothing confirmed",
			other:    nodetest.ConfirmedNetwork("evil", "10.244.9.0/26", []string{"8.8.8.8/32", "2001:db8::8/64"}, []string{}),
			problems: []string{"node evil says that it has the address 8.8.8.8 and 2001:db8::8" + doubt},
		},
		{
			name:   "by a controller that confirms nothing",
			other:  nodetest.ConfirmedNetwork("old", "10.244.9.0/26", []string{"192.168.79.9/24"}, nil),
			remote: []host.RemoteNode{remoteNode("old", "192.168.79.9", "10.244.9.0/26")}, peers: []string{"192.168.79.9"},
		},
		{
			name:   "in a network of the configuration",
			other:  nodetest.ConfirmedNetwork("second", "10.244.9.0/26", []string{"192.168.79.9/24"}, []string{"192.168.79.0/24"}),
			remote: []host.RemoteNode{remoteNode("second", "192.168.79.9", "10.244.9.0/26")}, peers: []string{"192.168.79.9"},
		},
		{
			name:     "another node's, by the configuration alone",
			other:    age(nodetest.ConfirmedNetwork("evil", "10.244.9.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.0/24"}), time.Hour),
			peers:    []string{"192.168.78.12"},
			problems: []string{"node evil says that it has the address 192.168.78.12, which is that of node n2"},
		},
		{
			name: "one family of two", up: []string{"192.168.77.11/24", "fd00:77::11/64"}, own: []string{"192.168.77.11/32", "fd00:77::11/128"},
			other:  nodetest.ConfirmedNetwork("half", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32"}),
			remote: []host.RemoteNode{remoteNode("half", "192.168.79.9", "fd00:10:244:9::/122")}, peers: []string{"192.168.79.9"},
		},
		{
			name: "one family of this node's two", up: []string{"192.168.77.11/24", "fd00:77::11/64"}, own: []string{"192.168.77.11/32"},
			other:  nodetest.ConfirmedNetwork("both", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32", "fd00:79::9/128"}),
			remote: []host.RemoteNode{remoteNode("both", "192.168.79.9", "fd00:10:244:9::/122")}, peers: []string{"192.168.79.9", "fd00:79::9"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.up == nil {
				tc.up, tc.own = []string{"192.168.77.11/24"}, []string{"192.168.77.11/32"}
			}
			own := age(nodetest.ConfirmedNetwork("n1", "10.244.1.0/26", tc.up, tc.own), time.Hour)
			all := []v1alpha1.NodeNetwork{*own, *tc.other, *good}
			c := config{encapsulation: EncapsulationAuto, vni: 158, port: 4789}
			got, problems := planHost(c, own, all, uplinkAt(tc.up...))
			want := append([]host.RemoteNode{}, tc.remote...)
			want = append(want, remoteNode("n2", "192.168.78.12", "10.244.2.0/26"))
			byAddress := cmpopts.SortSlices(func(a, b host.RemoteNode) bool { return a.Underlay.Less(b.Underlay) })
			if diff := cmp.Diff(want, got.Remote, nodetest.SameAddresses, byAddress); diff != "" || len(got.Peers) > 0 {
				t.Errorf("peers %v, remote (-want +got):\n%s", got.Peers, diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Error(diff)
			}
			believed, _ := UnderlayOf(tc.other)
			var peers []string
			for _, p := range believed {
				peers = append(peers, p.Addr().String())
			}
			if diff := cmp.Diff(tc.peers, peers); diff != "" {
				t.Errorf("believed (-want +got):\n%s", diff)
			}
		})
	}
}

// Host ports are at every address of the Node, whichever networks the configuration names for the
// nodes' traffic.
func TestOwnAddresses(t *testing.T) {
	nn := nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil)
	nn.Spec.Underlay, nn.Spec.NodeAddresses = []string{"10.20.0.0/16"}, []string{"10.0.0.5", "10.20.0.5"}
	got := ownAddresses(nn, uplinkAt("10.20.0.5/16", "fd00:20::5/64"))
	var texts []string
	for _, a := range got {
		texts = append(texts, a.String())
	}
	if diff := cmp.Diff([]string{"127.0.0.1", "10.20.0.5", "fd00:20::5", "10.0.0.5"}, texts); diff != "" {
		t.Error(diff)
	}
}
