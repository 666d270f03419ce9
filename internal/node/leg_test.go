package node

import (
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// A pod whose default interface does not lead to the node lives with a leg: the node routes the
// pod's addresses to it, and the runtime does not know it.
func TestLegLives(t *testing.T) {
	pa := nodetest.Attachment("p", "u1", "eth0", "fl0")
	first, leg := &pa.Spec.Interfaces[0], &pa.Spec.Interfaces[1]
	first.Network, first.Binding = "ns/further", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}
	first.Addresses, first.Gateways = []string{"192.0.2.7/24", "2001:db8::7/64"}, []string{"192.0.2.1", "2001:db8::1"}
	leg.Internal, leg.Gateways, leg.Addresses = true, nil, nil
	leg.Binding = v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{Of: []string{"192.0.2.7", "2001:db8::7"}}}
	leg.Routes = []v1alpha1.Route{{Destination: "10.96.0.0/12", Gateway: "169.254.1.1"}, {Destination: "fd00:10:96::/108", Gateway: "fe80::1"}}
	onFurtherNodeWith(t, pa, func(n *furtherNode) {
		t := n.t
		raw := n.plugged()
		live := func(when string) {
			t.Helper()
			if links := nettest.LinkNames(t, n.pod); !slices.Equal(links, []string{"eth0", "fl0", "lo"}) {
				t.Errorf("%s: the pod has %v", when, links)
			}
			n.wantRoutes(when, "192.0.2.7/32", "2001:db8::7/128")
			nodetest.WantCode(t, n.check(raw), 0)
		}
		live("ADD")
		res, err := types100.NewResult(raw)
		if err != nil {
			t.Fatal(err)
		}
		result, err := types100.GetResult(res)
		if err != nil {
			t.Fatal(err)
		}
		if len(result.Interfaces) != 1 || result.Interfaces[0].Name != "eth0" || len(result.IPs) != 2 {
			t.Errorf("ADD answers with %s", raw)
		}
		sweeps()
		live("a sweep")
		n.restart()
		live("a restart")
		nodetest.WantCode(t, n.del("c1"), 0)
		n.deleteAttachment(n.key)
		settle()
		n.wantNothing("DEL")
		n.wantRoutes("DEL")
	})
}

// wantRoutes checks which single addresses the host routes to host ends of pods.
func (n *furtherNode) wantRoutes(when string, want ...string) {
	n.t.Helper()
	var got []string
	for _, p := range nettest.Routes(n.t, n.host.Namespace(), routed.RouteProtocol) {
		if !p.Addr().IsLinkLocalUnicast() { // that of the pod's end
			got = append(got, p.String())
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		n.t.Errorf("%s: the host routes %v to pods, want %v", when, got, want)
	}
}
