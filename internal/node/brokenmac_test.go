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

// Three pods ask for the MAC of a fourth on one parent. That is a fault of the pods.
func TestMACThatIsThereIsNoBrokenKind(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		type at struct{ path, name, uid string }
		var pods []at
		for k := range 4 {
			p := at{nettest.NewNamespace(t).Path(), fmt.Sprint("web-", k), fmt.Sprint("w", k)}
			pa := nodetest.Attachment(p.name, p.uid)
			pa.Spec.Interfaces[0].Addresses = []string{fmt.Sprintf("10.244.1.%d/32", 20+k)}
			net1 := on("net1", "p0", fmt.Sprint("10.9.0.", 20+k))
			net1.MAC = "02:00:00:00:00:77"
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
			n.api.putPod(p.name, p.uid)
			n.api.put(pa)
			pods = append(pods, p)
		}
		settle()
		if _, err := n.handle(request(cniproto.VerbAdd, "d0", pods[0].path, pods[0].name, pods[0].uid)); err != nil {
			t.Fatal(err)
		}
		for try := range 3 {
			for k, p := range pods[1:] {
				_, err := n.handle(request(cniproto.VerbAdd, fmt.Sprintf("e%d-%d", k, try), p.path, p.name, p.uid))
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
	_ = v1alpha1.GroupVersion
}
