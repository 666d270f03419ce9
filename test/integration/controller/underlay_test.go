package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// The spec of a NodeNetwork confirms the addresses of the Node and follows their changes. If
// the Node has no address, it confirms none: the addresses that a node reports itself are
// not enough (own review 12).
func TestUnderlayFollowsTheNode(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	node := c.Node("node-x")
	// A NodeNetwork as a controller of the previous version left it.
	before := &v1alpha1.NodeNetwork{}
	before.Name = node.Name
	if err := c.Client.Create(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	want := func(what string, underlay ...string) {
		t.Helper()
		c.Eventually(t, what, func(ctx context.Context) error {
			nn := &v1alpha1.NodeNetwork{}
			if err := c.Client.Get(ctx, client.ObjectKey{Name: node.Name}, nn); err != nil {
				return err
			}
			if nn.Spec.Underlay == nil || !slices.Equal(nn.Spec.Underlay, underlay) {
				return fmt.Errorf("underlay %#v", nn.Spec.Underlay)
			}
			return nil
		})
	}
	address := func(addresses ...string) {
		t.Helper()
		now := &corev1.Node{}
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(node), now); err != nil {
			t.Fatal(err)
		}
		after := now.DeepCopy()
		after.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node.Name}}
		for _, a := range addresses {
			after.Status.Addresses = append(after.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		if err := c.Client.Status().Patch(t.Context(), after, client.MergeFrom(now)); err != nil {
			t.Fatal(err)
		}
	}
	want("a Node without addresses to confirm none")
	address("192.168.77.11", "fd00:77::11")
	want("addresses of both families", "192.168.77.11/32", "fd00:77::11/128")
	address("192.168.77.12")
	want("another address", "192.168.77.12/32")
	address()
	want("no address again")
}
