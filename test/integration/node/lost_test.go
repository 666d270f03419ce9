package node

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Another program deletes an interface of a running pod while the daemon is away. The next
// daemon reports it, to the operator and to the owner of the pod, with the rights that it has.
func TestInterfaceLost(t *testing.T) {
	l, n, _ := oneNode(t)
	p := n.pod(t, "p1")
	l.attach(t, n, p, []string{"10.244.1.5/32", "fd00:10:244:1::5/128"}, v1alpha1.Interface{
		Name: "net1", Network: l.cluster.Namespace + "/blue", Driver: "native",
		Addresses: []string{"10.9.0.5/32"}, MTU: 1400,
		Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
	})
	n.cni("ADD", p, p.netns.Path()).wantOK(t, "ADD")
	l.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	n.kill(t)
	n.removeLink(t, plug.RoutedName(p.containerID, "net1"))
	n.start(t)
	key := types.NamespacedName{Namespace: l.cluster.Namespace, Name: p.attachmentName()}
	l.cluster.Eventually(t, "the report of the loss", func(ctx context.Context) error {
		var pa v1alpha1.PodAttachment
		if err := l.cluster.Client.Get(ctx, key, &pa); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != v1alpha1.ReasonInterfacesGone {
			return fmt.Errorf("conditions %+v", pa.Status.Conditions)
		}
		return nil
	})
	l.wantEvent(t, n, p, v1alpha1.ReasonInterfacesGone, "net1: removed from the node by another program")
	n.cni("DEL", p, p.netns.Path()).wantOK(t, "DEL")
	l.release(t, p)
	l.wantState(t, p, v1alpha1.SandboxDetached, p.containerID)
}
