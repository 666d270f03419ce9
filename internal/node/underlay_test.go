package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
)

// vouched is a node with a tunnel, and what the controller has confirmed of it.
func vouched(name, block string, addresses, underlay []string) *v1alpha1.NodeNetwork {
	nn := tunnelled(name, []string{block}, addresses)
	nn.Spec.Underlay = underlay
	return nn
}

// A node whose daemon has gone bad writes any address into its status. The others
// send nothing there, and answers to it are masqueraded as before (own review 12).
func TestOnlyConfirmedAddressesAreUsed(t *testing.T) {
	const doubt = ", which neither its Node nor underlayCIDRs in the controller's configuration confirms"
	age := func(nn *v1alpha1.NodeNetwork, age time.Duration) *v1alpha1.NodeNetwork {
		nn.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
		return nn
	}
	good := age(vouched("n2", "10.244.2.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.12/32"}), time.Minute)
	for _, tc := range []struct {
		name     string
		up, own  []string
		other    *v1alpha1.NodeNetwork
		remote   []netdev.RemoteNode // beside that of the good node
		peers    []string            // of the packet filter, likewise
		problems []string
	}{
		{
			name:     "an address outside",
			other:    vouched("evil", "10.244.9.0/26", []string{"8.8.8.8/32"}, []string{"192.168.79.9/32"}),
			problems: []string{"node evil says that it has the address 8.8.8.8" + doubt},
		},
		{
			name:     "nothing confirmed",
			other:    vouched("evil", "10.244.9.0/26", []string{"8.8.8.8/32", "2001:db8::8/64"}, []string{}),
			problems: []string{"node evil says that it has the address 8.8.8.8 and 2001:db8::8" + doubt},
		},
		{
			name:   "by a controller that confirms nothing",
			other:  vouched("old", "10.244.9.0/26", []string{"192.168.79.9/24"}, nil),
			remote: []netdev.RemoteNode{remoteNode("old", "192.168.79.9", "10.244.9.0/26")}, peers: []string{"192.168.79.9"},
		},
		{
			name:   "in a network of the configuration",
			other:  vouched("second", "10.244.9.0/26", []string{"192.168.79.9/24"}, []string{"192.168.79.0/24"}),
			remote: []netdev.RemoteNode{remoteNode("second", "192.168.79.9", "10.244.9.0/26")}, peers: []string{"192.168.79.9"},
		},
		{
			name:     "another node's, by the configuration alone",
			other:    age(vouched("evil", "10.244.9.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.0/24"}), time.Hour),
			peers:    []string{"192.168.78.12"},
			problems: []string{"node evil says that it has the address 192.168.78.12, which is that of node n2"},
		},
		{
			name: "one family of two", up: []string{"192.168.77.11/24", "fd00:77::11/64"}, own: []string{"192.168.77.11/32", "fd00:77::11/128"},
			other:  vouched("half", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32"}),
			remote: []netdev.RemoteNode{remoteNode("half", "192.168.79.9", "fd00:10:244:9::/122")}, peers: []string{"192.168.79.9"},
		},
		{
			name: "one family of this node's two", up: []string{"192.168.77.11/24", "fd00:77::11/64"}, own: []string{"192.168.77.11/32"},
			other:  vouched("both", "fd00:10:244:9::/122", []string{"192.168.79.9/24", "fd00:79::9/64"}, []string{"192.168.79.9/32", "fd00:79::9/128"}),
			remote: []netdev.RemoteNode{remoteNode("both", "192.168.79.9", "fd00:10:244:9::/122")}, peers: []string{"192.168.79.9", "fd00:79::9"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.up == nil {
				tc.up, tc.own = []string{"192.168.77.11/24"}, []string{"192.168.77.11/32"}
			}
			own := age(vouched("n1", "10.244.1.0/26", tc.up, tc.own), time.Hour)
			all := []v1alpha1.NodeNetwork{*own, *tc.other, *good}
			c := hostConfig{bridge: "fairlead0", encapsulation: EncapsulationAuto, vni: 158, port: 4789}
			got, problems := planHost(c, own, all, uplinkAt(tc.up...))
			want := append([]netdev.RemoteNode{}, tc.remote...)
			want = append(want, remoteNode("n2", "192.168.78.12", "10.244.2.0/26"))
			byAddress := cmpopts.SortSlices(func(a, b netdev.RemoteNode) bool { return a.Underlay.Less(b.Underlay) })
			if diff := cmp.Diff(want, got.Remote, sameAddresses, byAddress); diff != "" || len(got.Peers) > 0 {
				t.Errorf("peers %v, remote (-want +got):\n%s", got.Peers, diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Error(diff)
			}
			f := planFilter("fairlead0", Masquerade{Enabled: true}, own, all)
			peers := []netip.Addr{netip.MustParseAddr("192.168.78.12")}
			for _, p := range tc.peers {
				peers = append(peers, netip.MustParseAddr(p))
			}
			byOrder := cmpopts.SortSlices(netip.Addr.Less)
			if diff := cmp.Diff(peers, f.Peers, sameAddresses, byOrder); diff != "" {
				t.Errorf("peers of the packet filter (-want +got):\n%s", diff)
			}
			for _, p := range f.Cluster {
				if p.Contains(netip.MustParseAddr("8.8.8.8")) {
					t.Errorf("what goes to %v is not masqueraded", p)
				}
			}
		})
	}
}

// A node that the others do not believe says so, and sends nothing that would have
// no answer.
func TestUnconfirmedNodeSaysSo(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		w.encapsulation = EncapsulationAuto
		w.restart()
		w.api.putNetwork(vouched("n2", "10.244.2.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.12/32"}))
		condition := func(kind string) *metav1.Condition {
			filtered()
			nn, _ := w.own()
			return meta.FindStatusCondition(nn.Status.Conditions, kind)
		}
		confirm := func(underlay ...string) {
			nn, _ := w.own()
			nn = nn.DeepCopy()
			nn.Spec.Underlay = underlay
			w.api.putNetwork(nn)
		}
		if c := condition(v1alpha1.ConditionConfirmed); c != nil {
			t.Errorf("a controller that confirms nothing: %+v", c)
		}
		for _, tc := range []struct {
			underlay []string
			want     metav1.Condition
			routed   string
		}{
			{[]string{"192.0.2.99/32"}, metav1.Condition{
				Status: metav1.ConditionFalse, Reason: "NotConfirmed",
				Message: "other nodes do not reach pods here: this node says that it has the address 192.168.77.11, " +
					"which neither its Node nor underlayCIDRs in the controller's configuration confirms",
			}, "NotReachable"},
			{[]string{"192.168.77.11/32"}, metav1.Condition{
				Status: metav1.ConditionTrue, Reason: "Confirmed", Message: "other nodes use the addresses of this one",
			}, "Routed"},
		} {
			confirm(tc.underlay...)
			tc.want.Type = v1alpha1.ConditionConfirmed
			if diff := cmp.Diff(&tc.want, condition(v1alpha1.ConditionConfirmed), cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
				t.Error(diff)
			}
			if c := condition(v1alpha1.ConditionRouted); c == nil || c.Reason != tc.routed {
				t.Errorf("%v: routed %+v, want %s", tc.underlay, c, tc.routed)
			}
		}
		w.filter.want(t, "peers", "192.168.78.12")
		w.filter.want(t, "tunnel", "192.168.77.11")
	})
}
