package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// smallNode creates a node and a default pool with 14 addresses in a domain of the same name.
// The pool is small, so that an address that is free by mistake is soon given to another
// pod. It watches that no two records name one address unless they are being deleted. It
// does not check the blocks, which may be wrong for a while.
func smallNode(t *testing.T, c *cluster.Cluster, name string) *observer {
	t.Helper()
	c.Node(name)
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.1.0.0/28"}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}},
	}); err != nil {
		t.Fatal(err)
	}
	w := &observer{c: c, domain: name}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		records, err := w.records(ctx)
		if err != nil {
			return
		}
		seen := map[string]string{}
		for i := range records {
			r := &records[i]
			for _, a := range addressesOf(r) {
				if other := seen[a]; other != "" && r.DeletionTimestamp == nil {
					w.fault("records %s and %s both name %s", other, r.Name, a)
				}
				if r.DeletionTimestamp == nil {
					seen[a] = r.Name
				}
			}
		}
		w.detach(ctx, records)
	})
	return w
}

// agree returns an error until each of these pods has one record and its slots name the pod,
// and there is no other record and no other taken address.
func (w *observer) agree(ctx context.Context, pods []*corev1.Pod) error {
	if err := w.holdsOnly(ctx, pods); err != nil {
		return err
	}
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return err
	}
	for i := range records {
		for _, a := range addressesOf(&records[i]) {
			if slots[a] != string(records[i].Spec.PodUID) {
				return fmt.Errorf("record %s names %s, and its slot names %q", records[i].Name, a, slots[a])
			}
		}
	}
	return nil
}

func (w *observer) blocks(t *testing.T) []v1alpha1.IPBlock {
	t.Helper()
	var list v1alpha1.IPBlockList
	if err := w.c.Client.List(t.Context(), &list, client.MatchingLabels{v1alpha1.LabelDomain: w.domain}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// byHand are edits that a person makes to blocks. first are the blocks in their first state.
var byHand = map[string]func(t *testing.T, w *observer, first []v1alpha1.IPBlock){
	"deleted": func(t *testing.T, w *observer, _ []v1alpha1.IPBlock) {
		w.c.Eventually(t, "the deletion of all blocks", func(ctx context.Context) error {
			return w.c.Client.DeleteAllOf(ctx, &v1alpha1.IPBlock{}, client.MatchingLabels{v1alpha1.LabelDomain: w.domain})
		})
	},
	"edited": func(t *testing.T, w *observer, _ []v1alpha1.IPBlock) { w.edit(t, nil) },
	"put back to an older state": func(t *testing.T, w *observer, first []v1alpha1.IPBlock) {
		w.edit(t, first[0].Spec.Slots)
	},
}

// edit writes the slots of the only block. It retries if the controller has written the block
// meanwhile.
func (w *observer) edit(t *testing.T, slots []string) {
	t.Helper()
	w.c.Eventually(t, "an edit by hand", func(ctx context.Context) error {
		b := w.blocks(t)[0] //nolint:contextcheck // it uses the context of the test
		b.Spec.Slots, b.Spec.Used = slots, int32(len(slots))
		return w.c.Client.Update(ctx, &b)
	})
}

// TestBlocksByHand deletes blocks in use, edits them and restores them to an older state, by
// the way round the policy: no controller runs meanwhile, but for a deletion, which also the
// end of their CRD makes. No address is given to two pods, and in the end the blocks name the
// holder of each address.
func TestBlocksByHand(t *testing.T) {
	t.Parallel()
	for name, hand := range byHand {
		for _, running := range []bool{true, false} {
			if running && name != "deleted" {
				continue // the policy refuses it
			}
			t.Run(fmt.Sprintf("%s, controller running %v", name, running), func(t *testing.T) {
				t.Parallel()
				c := cluster.Exclusive(t)
				const node = "healing"
				w := smallNode(t, c, node)
				var first []v1alpha1.IPBlock
				var old []*corev1.Pod
				before := func(t *testing.T) {
					supervise(t, c.Account(cluster.ControllerAccount, ""))
					for i := range 6 {
						if i == 2 {
							c.Eventually(t, "the first records", func(ctx context.Context) error { return w.agree(ctx, old) })
							first = w.blocks(t)
						}
						old = append(old, c.Pod(fmt.Sprintf("old-%d", i), node))
					}
					c.Eventually(t, "all records", func(ctx context.Context) error { return w.agree(ctx, old) })
				}
				if running {
					before(t)
				} else {
					t.Run("up", before) // the controller ends with the subtest
				}
				if t.Failed() {
					return
				}
				hand(t, w, first)
				pods := old
				for i := range 8 {
					pods = append(pods, c.Pod(fmt.Sprintf("new-%d", i), node))
				}
				if !running {
					supervise(t, c.Account(cluster.ControllerAccount, ""))
				}
				c.Eventually(t, "each pod's own address in records and blocks", func(ctx context.Context) error { return w.agree(ctx, pods) })
				c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
			})
		}
	}
}

// TestBlocksWithoutTheirKind deletes the CRD of IPBlocks, which deletes all IPBlocks, and
// installs the CRD again.
func TestBlocksWithoutTheirKind(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const node = "kindless"
	w := smallNode(t, c, node)
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, c.Pod(fmt.Sprintf("old-%d", i), node))
	}
	c.Eventually(t, "all records", func(ctx context.Context) error { return w.agree(ctx, pods) })
	crd := &apiextensionsv1.CustomResourceDefinition{}
	key := client.ObjectKey{Name: "ipblocks.fairlead.dev"}
	if err := c.Client.Get(t.Context(), key, crd); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the CRD to be gone", func(ctx context.Context) error {
		err := c.Client.Get(ctx, key, &apiextensionsv1.CustomResourceDefinition{})
		if err == nil {
			err = errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
	for i := range 6 {
		pods = append(pods, c.Pod(fmt.Sprintf("new-%d", i), node))
	}
	c.Eventually(t, "the CRD to be installed", func(ctx context.Context) error {
		again := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name}, Spec: crd.Spec}
		if err := c.Client.Create(ctx, again); err != nil {
			return err
		}
		return nil
	})
	c.Eventually(t, "each pod's own address in records and blocks", func(ctx context.Context) error { return w.agree(ctx, pods) })
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
