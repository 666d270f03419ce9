package node

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// Three pods are on a network whose routes have a destination that eth0 has too. That is a fault of
// the network: a restart of the daemon does not help.
func TestRouteThatIsThereIsNoBrokenKind(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		type at struct{ path, name, uid string }
		var pods []at
		for k := 1; k <= 3; k++ {
			p := at{nettest.NewNamespace(t).Path(), fmt.Sprint("web-", k), fmt.Sprint("w", k)}
			pa := nodetest.Attachment(p.name, p.uid)
			pa.Spec.Interfaces[0].Addresses = []string{fmt.Sprintf("10.244.1.%d/32", 20+k)}
			net1 := on("net1", "p0", fmt.Sprint("10.9.0.", 20+k))
			net1.Routes = []v1alpha1.Route{{Destination: "0.0.0.0/0", Gateway: "10.9.0.1"}}
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
			n.api.putPod(p.name, p.uid)
			n.api.put(pa)
			pods = append(pods, p)
		}
		settle()
		for try := range 3 {
			for k, p := range pods {
				_, err := n.handle(request(cniproto.VerbAdd, fmt.Sprintf("d%d-%d", k, try), p.path, p.name, p.uid))
				if err == nil {
					t.Fatal("ADD succeeds")
				}
				t.Log(err)
			}
			<-time.After(time.Minute)
			settle()
		}
		for kind, check := range n.network.Checks() {
			if err := check(); err != nil {
				t.Errorf("the daemon is to be restarted for kind %s: %v", kind, err)
			}
		}
	})
}
