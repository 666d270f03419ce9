package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// In whereabouts#546, pods that were deleted while no controller ran leaked their addresses.
// Here, while the controller is down, one pod is deleted and one finishes. One is deleted
// with its record, so that only the block names it. One is deleted on a node with the
// out-of-service taint.
func TestWhatHappenedWhileDown(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const name = "missed"
	w := oneNode(t, c, name)
	off := c.Node(name + "-off")
	gone, finished, forgotten, stays := c.Pod("gone", name), c.Pod("finished", name), c.Pod("forgotten", name), c.Pod("stays", name)
	stranded := c.Pod("stranded", off.Name)
	t.Run("up", func(t *testing.T) {
		supervise(t, c.Account(cluster.ControllerAccount, ""))
		c.Eventually(t, "all records", func(ctx context.Context) error {
			return w.recorded(ctx, []*corev1.Pod{gone, finished, forgotten, stays})
		})
		c.Eventually(t, "a pod that was plugged", func(ctx context.Context) error { return w.setAttached(ctx, stranded) })
	}) // the controller ends with the subtest
	if t.Failed() {
		return
	}
	for _, p := range []*corev1.Pod{gone, forgotten, stranded} {
		if err := c.Client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	after := finished.DeepCopy()
	after.Status.Phase = corev1.PodFailed
	if err := c.Client.Status().Patch(t.Context(), after, client.MergeFrom(finished)); err != nil {
		t.Fatal(err)
	}
	deleteRecord(t, c, forgotten)
	switchOff(t, c, off)
	late := c.Pod("late", name)

	supervise(t, c.Account(cluster.ControllerAccount, ""))
	c.Eventually(t, "records and addresses of the running pods only", func(ctx context.Context) error {
		return w.holdsOnly(ctx, []*corev1.Pod{stays, late})
	})
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}

// switchOff marks a node as powered off: it adds the out-of-service taint, as an operator
// does, and sets the node's condition to Unknown, as Kubernetes does.
func switchOff(t *testing.T, c *cluster.Cluster, node *corev1.Node) {
	t.Helper()
	before := node.DeepCopy()
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	if err := c.Client.Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	before = node.DeepCopy()
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	if err := c.Client.Status().Patch(t.Context(), node, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// setAttached sets Attached on the record of a pod. It returns an error until the pod has a
// record. detach does not change a record with a sandbox.
func (w *observer) setAttached(ctx context.Context, p *corev1.Pod) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(records, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == p.UID })
	if i < 0 {
		return fmt.Errorf("pod %s has no record", p.Name)
	}
	at := metav1.NowMicro()
	return w.writeSandbox(ctx, &records[i], v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: v1alpha1.SandboxAttached, AttachedAt: &at})
}

// deleteRecord deletes the record of a pod without its release: it removes the finalizer first.
func deleteRecord(t *testing.T, c *cluster.Cluster, p *corev1.Pod) {
	t.Helper()
	c.Eventually(t, "the record of pod "+p.Name+" to be gone", func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == p.UID })
		if i < 0 {
			return nil
		}
		record := &list.Items[i]
		before := record.DeepCopy()
		record.Finalizers = nil
		if err := c.Client.Patch(ctx, record, client.MergeFrom(before)); err != nil {
			return err
		}
		if err := c.Client.Delete(ctx, record); client.IgnoreNotFound(err) != nil {
			return err
		}
		return fmt.Errorf("it was there until this deletion")
	})
}

// holdsOnly returns an error until exactly these pods have records and addresses, one each.
func (w *observer) holdsOnly(ctx context.Context, pods []*corev1.Pod) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return err
	}
	var want, recorded []string
	for _, p := range pods {
		want = append(want, string(p.UID))
	}
	for _, r := range records {
		recorded = append(recorded, string(r.Spec.PodUID))
	}
	slices.Sort(want)
	slices.Sort(recorded)
	if diff := cmp.Diff(want, recorded); diff != "" {
		return fmt.Errorf("pods with records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Values(slots))); diff != "" {
		return fmt.Errorf("pods with addresses (-want +got):\n%s", diff)
	}
	return nil
}
