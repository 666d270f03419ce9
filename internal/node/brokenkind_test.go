package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// refusedPod is a pod with a macvlan of a network that the kernel refuses.
type refusedPod struct{ path, name, uid string }

// refusedPods makes pods with an interface net1 on p0, which change spoils.
func (n *runningNode) refusedPods(count int, change func(net1 *v1alpha1.Interface)) (pods []refusedPod) {
	for k := range count {
		p := refusedPod{nettest.NewNamespace(n.t).Path(), fmt.Sprint("web-", k), fmt.Sprint("w", k)}
		pa := nodetest.Attachment(p.name, p.uid)
		pa.Spec.Interfaces[0].Addresses = []string{fmt.Sprintf("10.244.1.%d/32", 20+k)}
		net1 := on("net1", "p0", fmt.Sprint("10.9.0.", 20+k))
		change(&net1)
		pa.Spec.Interfaces = append(pa.Spec.Interfaces, net1)
		n.api.putPod(p.name, p.uid)
		n.api.put(pa)
		pods = append(pods, p)
	}
	settle()
	return pods
}

// wantNoBrokenKind plugs pods for three minutes. The kernel refuses each with an error, which is no
// fault of the daemon.
func (n *runningNode) wantNoBrokenKind(pods []refusedPod, refusal error) {
	for try := range 3 {
		for k, p := range pods {
			_, err := n.handle(request(cniproto.VerbAdd, fmt.Sprintf("d%d-%d", k, try), p.path, p.name, p.uid))
			if err == nil || !strings.Contains(err.Error(), refusal.Error()) {
				n.t.Errorf("ADD: %v, want %v", err, refusal)
			}
		}
		<-time.After(time.Minute)
		settle()
	}
	for kind, check := range n.network.Checks() {
		if err := check(); err != nil {
			n.t.Errorf("the daemon is to be restarted for kind %s: %v", kind, err)
		}
	}
}

// Three pods ask for the MAC of a fourth on one parent. That is a fault of the pods.
func TestMACThatIsThereIsNoBrokenKind(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		pods := n.refusedPods(4, func(net1 *v1alpha1.Interface) { net1.MAC = "02:00:00:00:00:77" })
		if _, err := n.handle(request(cniproto.VerbAdd, "first", pods[0].path, pods[0].name, pods[0].uid)); err != nil {
			t.Fatal(err)
		}
		n.wantNoBrokenKind(pods[1:], unix.EADDRINUSE)
	})
}

// Three pods are on a network whose routes have a destination that eth0 has too. That is a fault of
// the network: a restart of the daemon does not help.
func TestRouteThatIsThereIsNoBrokenKind(t *testing.T) {
	onRunningNode(t, func(n *runningNode) {
		n.wantNoBrokenKind(n.refusedPods(3, func(net1 *v1alpha1.Interface) {
			net1.Routes = []v1alpha1.Route{{Destination: "0.0.0.0/0", Gateway: "10.9.0.1"}}
		}), unix.EEXIST)
	})
}
