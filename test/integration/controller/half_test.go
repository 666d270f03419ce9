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

// TestHalfGoesWithItsPod: two pods want one address on a further network. The one that
// waits explains what it has of the default network, and when it is deleted that goes
// with it, long before garbage collection looks.
func TestHalfGoesWithItsPod(t *testing.T) {
	c := cluster.Exclusive(t)
	const name = "half"
	world := oneNode(t, c, name)
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
	c.Eventually(t, "the first record", func(ctx context.Context) error { return world.recorded(ctx, []*corev1.Pod{first}) })
	second := c.Pod("second", name, wants)
	hasHalf := func(ctx context.Context) error {
		slots, err := world.slots(ctx)
		if err != nil {
			return err
		}
		for _, uid := range slots {
			if uid == string(second.UID) {
				return nil
			}
		}
		return errors.New("it has nothing")
	}
	c.Eventually(t, "half of what the second needs", hasHalf)
	if err := audited(t.Context(), c); err != nil {
		t.Errorf("while it waits: %v", err)
	}
	if err := c.Client.Delete(t.Context(), second, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "its half to go with it", func(ctx context.Context) error {
		slots, err := world.slots(ctx)
		if err != nil {
			return err
		}
		records, err := world.records(ctx)
		if err != nil {
			return err
		}
		of := func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == second.UID }
		if hasHalf(ctx) == nil || slices.ContainsFunc(records, of) {
			return fmt.Errorf("slots %v, %d records", slots, len(records))
		}
		return nil
	})
}
