package node

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// Another program removes the link below an interface of a running pod. The condition Ready names
// the interface, of whatever kind it is.
func TestLostInterfaceOfEachKind(t *testing.T) {
	for network, removes := range map[string]string{"br1": plug.HostName("c1", "net1"), "p0": "p0"} {
		t.Run(network, func(t *testing.T) {
			onRunningNode(t, func(n *runningNode) {
				n.plugged()
				n.asks(on("net1", network, "10.9.0.5"))
				n.wantReady(n.key, "c1")
				nettest.Steps(t, n.host, link.Remove(removes))
				<-time.After(5 * time.Minute)
				settle()
				if links := nettest.LinkNames(t, n.pod); slices.Contains(links, "net1") {
					t.Fatalf("net1 is there: %v", links)
				}
				c := meta.FindStatusCondition(n.api.get(n.key).Status.Conditions, v1alpha1.ConditionReady)
				if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInterfacesGone {
					t.Errorf("the pod has lost net1, and its condition Ready is %s, %s: %s", c.Status, c.Reason, c.Message)
				}
			})
		})
	}
}
