package node

import (
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// A pod asks for a host port, or for a limit of its bandwidth, and its default interface is a macvlan,
// which has no port on the node: neither can be served, and the ADD is refused.
func TestHostPortNeedsABridge(t *testing.T) {
	for name, asks := range map[string]string{
		"host port": `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
		"bandwidth": `{"bandwidth":{"ingressRate":1000000,"ingressBurst":1000000}}`,
	} {
		t.Run(name, func(t *testing.T) {
			n := &runningNode{podNode: newPodNode(t)}
			nettest.AddDevice(t, n.host, "p0")
			onTestNodeWith(t, kinds.All(n.host), func(w *testNode) {
				pa := nodetest.Attachment("p", "u1")
				i := &pa.Spec.Interfaces[0]
				i.Addresses, i.Gateways, i.MAC = []string{"10.9.0.5/24"}, []string{"10.9.0.1"}, ""
				i.Binding = v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}
				n.serve(w, pa)
				r := n.request(cniproto.VerbAdd)
				r.Config = nodetest.Asking(asks)
				_, err := n.handle(r)
				if err == nil {
					rec := n.network.ledger.Get("c1")
					t.Errorf("ADD succeeds; the record has %+v (%s); the packet filter has %v", rec.Plug().HostPorts, rec.Plug().Interfaces[0].Made.Kind, n.filter)
				} else {
					t.Log(err)
				}
			})
		})
	}
	_ = plug.KindMacvlan
}
