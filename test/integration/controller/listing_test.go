package controller

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestNothingIsHandedOutBeforeAllRecordsAreRead starts a controller whose list of
// PodAttachments is delayed. No pod gets an address before the list, since blocks may have
// lost addresses that the records name. After the list a new pod gets its network, and so
// does a pod with addresses and no record. The address of a deleted pod is released.
func TestNothingIsHandedOutBeforeAllRecordsAreRead(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const name = "listing"
	w := oneNode(t, c, name)
	stays, half, goes := c.Pod("stays", name), c.Pod("half", name), c.Pod("goes", name)
	t.Run("up", func(t *testing.T) {
		supervise(t, c.Account(cluster.ControllerAccount, ""))
		c.Eventually(t, "all records", func(ctx context.Context) error { return w.recorded(ctx, []*corev1.Pod{stays, half, goes}) })
	}) // the controller ends with the subtest
	if t.Failed() {
		return
	}
	deleteRecord(t, c, half) // as if the controller had been killed before it wrote the record
	if err := c.Client.Delete(t.Context(), goes); err != nil {
		t.Fatal(err)
	}

	k, all := newKiller(t, c), make(chan struct{})
	k.holdLists(all)
	p := supervise(t, k.kubeconfig(t))
	var written atomic.Int32
	k.aim(p, func(m moment) bool {
		if m.method == http.MethodPost && m.resource == "podattachments" && !m.after {
			written.Add(1)
		}
		return false
	})
	late := c.Pod("late", name)
	other := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.9.0.0/24"}}}
	if err := c.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the controller to work", func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(other), other); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(other.Status.Conditions, v1alpha1.ConditionReady) {
			return errors.New("the pool is not Ready")
		}
		return nil
	})
	records, err := w.records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(records, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == p.UID })
	}
	if n := written.Load(); n != 0 || has(half) || !has(goes) || len(records) != 2 {
		t.Errorf("before the records are read: %d were written, half has one: %v, the one of goes is there: %v, all: %d", n, has(half), has(goes), len(records))
	}
	close(all)
	c.Eventually(t, "records and addresses of the running pods only", func(ctx context.Context) error {
		return w.holdsOnly(ctx, []*corev1.Pod{stays, half, late})
	})
	if n := written.Load(); n != 2 {
		t.Errorf("%d records were written; want those of late and of half", n)
	}
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
