package controller

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/cluster"
)

// ported waits until a pod has the record of its port.
func (w *neutronTest) ported(t *testing.T, p *corev1.Pod) (port string) {
	t.Helper()
	w.c.Eventually(t, "the record of pod "+p.Name, func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
			return err
		}
		for _, i := range record.Spec.Interfaces {
			if i.Binding.OVS != nil {
				port = i.Binding.OVS.PortID
				return nil
			}
		}
		return fmt.Errorf("it has %+v", record.Spec.Interfaces)
	})
	return port
}

// pooled waits until the PortPools have so many ports that pods have, and at least so many
// that are ready. It returns the PortPools.
func (w *neutronTest) pooled(t *testing.T, used, ready int32) (pools v1alpha1.PortPoolList) {
	t.Helper()
	w.c.Eventually(t, fmt.Sprintf("%d ports of pods and %d ready ports", used, ready), func(ctx context.Context) error {
		if err := w.c.Client.List(ctx, &pools); err != nil {
			return err
		}
		var u, r int32
		for _, p := range pools.Items {
			u, r = u+p.Spec.Used, r+p.Spec.Ready
		}
		if u != used || r < ready {
			return fmt.Errorf("%d and %d: %+v", u, r, pools.Items)
		}
		return nil
	})
	return pools
}

// Pods get ports of a pool, also while Neutron is away and after the leader was killed; the
// ports come back, and a drained pool leaves nothing.
func TestNeutronPools(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNeutronWith(t, c, "ports: {network: lan, pools: {low: 4, high: 8}}, open: [{namespaceSelector: {}, networks: [lan]}]")
	c.Network("lan", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"lan"}`)

	first := w.pods("first", "lan", 3)
	seen := map[string]string{}
	take := func(pods ...*corev1.Pod) {
		t.Helper()
		for _, p := range pods {
			id := w.ported(t, p)
			if other, ok := seen[id]; ok {
				t.Errorf("pods %s and %s have port %s", other, p.Name, id)
			}
			seen[id] = p.Name
		}
	}
	take(first...)
	w.pooled(t, 3, 4)

	w.cloud.Inject(func(string, string) cloudtest.Fault { return cloudtest.Fault{LoseRequest: true} })
	away := w.pods("away", "lan", 2)
	take(away...)
	leader := leaderOf(t, w.c)
	if err := syscall.Kill(processOf(t, leader), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	restarted := w.pods("restarted", "lan", 2)
	take(restarted...)
	for _, p := range away {
		w.delete(t, p)
	}
	w.pooled(t, 5, 0)
	w.cloud.Inject(nil)
	pools := w.pooled(t, 5, 4)

	for i := range pools.Items {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"desired":0}}`))
		if err := c.Client.Patch(t.Context(), &pools.Items[i], patch); err != nil {
			t.Fatal(err)
		}
	}
	w.pooled(t, 5, 0)
	own := w.pods("own", "lan", 1)
	take(own...)
	w.gone(t, append(append(first, restarted...), own...)...)
}
