package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestHalfGoesWithItsPod has two pods that request one address on a second network. The pod
// that waits already has an address of the default network, and an audit accepts it. The
// address is released when the pod is deleted, long before the next garbage collection.
func TestHalfGoesWithItsPod(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const name = "half"
	w := oneNode(t, c, name)
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.2.0.0/24"}, NetworkNamespaceSelector: &metav1.LabelSelector{}},
	}); err != nil {
		t.Fatal(err)
	}
	c.Network("blue", `{"type": "bridge", "ipam": {"type": "fairlead-ipam", "pools": ["blue"]}}`)
	supervise(t, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [npwg]", "gcInterval: 1h")
	wants := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": `[{"name": "blue", "ips": ["10.2.0.7"]}]`}
	}
	first := c.Pod("first", name, wants)
	c.Eventually(t, "the first record", func(ctx context.Context) error { return w.recorded(ctx, []*corev1.Pod{first}) })
	second := c.Pod("second", name, wants)
	hasAddress := func(ctx context.Context) error {
		slots, err := w.slots(ctx)
		if err != nil {
			return err
		}
		for _, uid := range slots {
			if uid == string(second.UID) {
				return nil
			}
		}
		return errors.New("it has no address")
	}
	c.Eventually(t, "an address of the second pod", hasAddress)
	if err := audited(t.Context(), c); err != nil {
		t.Errorf("while it waits: %v", err)
	}
	if err := c.Client.Delete(t.Context(), second, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the release of the second pod's address", func(ctx context.Context) error {
		slots, err := w.slots(ctx)
		if err != nil {
			return err
		}
		records, err := w.records(ctx)
		if err != nil {
			return err
		}
		of := func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == second.UID }
		if hasAddress(ctx) == nil || slices.ContainsFunc(records, of) {
			return fmt.Errorf("slots %v, %d records", slots, len(records))
		}
		return nil
	})
}
