package main

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestServesBeforeAllRecordsAreRead starts a controller whose list of
// PodAttachments does not come: a new pod gets its network all the same, and for
// one that has addresses, with a record or without, no record is written until it
// is known whether there is one. What was deleted meanwhile is given back then.
func TestServesBeforeAllRecordsAreRead(t *testing.T) {
	c := cluster.Exclusive(t)
	const name = "listing"
	world := oneNode(t, c, name)
	stays, half, goes := c.Pod("stays", name), c.Pod("half", name), c.Pod("goes", name)
	t.Run("up", func(t *testing.T) {
		supervise(t, c.Account(cluster.ControllerAccount, ""))
		c.Eventually(t, "all records", func(ctx context.Context) error { return world.recorded(ctx, []*corev1.Pod{stays, half, goes}) })
	}) // and with it ends the controller
	if t.Failed() {
		return
	}
	forget(t, c, half) // as if it had been killed before it wrote the record
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
	c.Eventually(t, "the record of a new pod", func(ctx context.Context) error { return world.recorded(ctx, []*corev1.Pod{late}) })
	records, err := world.records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(records, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == p.UID })
	}
	if n := written.Load(); n != 1 || has(half) || !has(goes) {
		t.Errorf("before the records are read: %d were written, half has one: %v, the one of goes is there: %v", n, has(half), has(goes))
	}
	close(all)
	c.Eventually(t, "what the living have, and nothing else", func(ctx context.Context) error {
		return world.holdsOnly(ctx, []*corev1.Pod{stays, half, late})
	})
	if n := written.Load(); n != 2 {
		t.Errorf("%d records were written; want those of late and of half", n)
	}
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
