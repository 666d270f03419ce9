package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestAuditShowsItself damages a slot of a block. The controller finds it without a command,
// and reports it in a condition and an event of the pool.
func TestAuditShowsItself(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	const node = "consistent"
	w := smallNode(t, c, node)
	supervise(t, c.Account(cluster.ControllerAccount, ""), "gcInterval: 10s")
	p := c.Pod("web", node)
	c.Eventually(t, "the record", func(ctx context.Context) error { return w.agree(ctx, []*corev1.Pod{p}) })
	condition := func(ctx context.Context, status, message string) error {
		pool := &v1alpha1.IPPool{}
		if err := c.Client.Get(ctx, client.ObjectKey{Name: "default"}, pool); err != nil {
			return err
		}
		got := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionConsistent)
		if got == nil || string(got.Status) != status || !strings.Contains(got.Message, message) {
			return fmt.Errorf("condition %+v", got)
		}
		return nil
	}
	c.Eventually(t, "a first audit", func(ctx context.Context) error { return condition(ctx, "True", "one holder") })
	w.edit(t, append(w.blocks(t)[0].Spec.Slots, "9 A nonsense"))
	c.Eventually(t, "the condition", func(ctx context.Context) error {
		return condition(ctx, "False", "I2 10.1.0.9: a record cannot be read")
	})
	c.Eventually(t, "the event", func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := c.Client.List(ctx, &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason == "Inconsistent" && e.Regarding.Kind == "IPPool" }) {
			return fmt.Errorf("none of %d", len(list.Items))
		}
		return nil
	})
}
