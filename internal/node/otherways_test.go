package node

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/test/delegatetest"
)

// The plugins of an interface that a running pod gets ask for its addresses, as those of an
// interface of the ADD do.
func TestHotPlugAsksForAddresses(t *testing.T) {
	executingNode(t, []string{"eth0"}, func([]v1alpha1.Interface) {}, func(t *testing.T, n *node2) {
		n.plugged()
		started, reply := n.fifo("started-ADD"), n.fifo("answer-ADD")
		n.Set(t, "first", "ADD", delegatetest.Does{Address: blueAddress, Started: started, Answer: reply})
		n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
			net1 := v1alpha1.Interface{Name: "net1", Network: "ns/blue", Driver: "native"}
			delegates(&net1, "first")
			net1.Addresses, net1.Gateways = []string{blueAddress}, []string{"10.9.0.1"}
			net1.Binding.Delegate.Plugins = []string{`{"type":"first","ipam":{"type":"fairlead-ipam"}}`}
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
			pa.Generation++
		})
		if _, err := os.ReadFile(started); err != nil {
			t.Fatal(err)
		}
		r := n.request(cniproto.VerbAdd)
		r.IPAM, r.IfName = "fairlead-ipam", "net1"
		r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":"blue","type":"first","ipam":{"type":"fairlead-ipam"}}`)
		given, err := n.handle(r)
		if err != nil {
			t.Errorf("ADD of fairlead-ipam during a hot plug: %v", err)
		} else if ips, _ := ipsOf(t, given); !slices.Equal(ips, []string{blueAddress + " by 10.9.0.1"}) {
			t.Errorf("addresses %q", ips)
		}
		if err := os.WriteFile(reply, []byte(blue), 0); err != nil {
			t.Fatal(err)
		}
		settle()
		n.wantReady(n.key, "c1")
	})
}

// A host port that is reserved for the node is refused also when a running pod asks for it.
func TestHotPlugOfAReservedPort(t *testing.T) {
	executingNode(t, []string{"eth0"}, func([]v1alpha1.Interface) {}, func(t *testing.T, n *node2) {
		n.reserved = []answer.ReservedPort{{Protocol: "tcp", First: 10250, Last: 10250, Option: "hostPorts.reserved"}}
		n.restart()
		n.plugged()
		n.api.change(n.key, func(pa *v1alpha1.PodAttachment) {
			net1 := v1alpha1.Interface{Name: "net1", Network: "ns/blue", Driver: "native"}
			delegates(&net1, "first")
			net1.Binding.Delegate.RuntimeConfig = `{"portMappings":[{"hostPort":10250,"containerPort":80,"protocol":"tcp"}]}`
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
			pa.Generation++
		})
		settle()
		for _, c := range n.Calls(t) {
			t.Errorf("%s is executed with %s", c.Verb(), c.Config)
		}
	})
}

// A plugin asks for addresses without the UID of its pod, as old runtimes and Multus do. The
// PodAttachment of an earlier pod of that name is still there: its addresses are not those of
// the pod, as for an ADD of Fairlead's own interfaces.
func TestAddressesWithoutUIDOfTheNextPod(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.further(w.pod("db-0", "uid-old"), "net1")
		w.api.putPod("db-0", "uid-new") // the controller has not seen it yet
		if _, err := w.add("c1", "db-0", ""); err == nil {
			t.Error("ADD: the pod gets the interfaces of the earlier one")
		}
		raw, err := w.ipam("ADD", "c2", "net1", "db-0", "", macvlan)
		if err == nil {
			t.Errorf("ADD of addresses: the pod gets those of the earlier one: %s; its record has %+v", raw, w.network.ledger.Get("c2").Pod)
		}
	})
}
