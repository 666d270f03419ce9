package controller

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// TestStatusIsMended checks that the controller corrects a wrong status of a pool, a claim
// and a reservation, no matter which program wrote it. The controller itself can have
// written it: an old status may be stored by a write whose reply was lost.
func TestStatusIsMended(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	w := &poolTest{claimTest{&observer{c: c, domain: "status"}}}
	pool := w.pool(t, "default", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.1"}})
	address := addressOf(t, c, w.annotated("vm", "node-x", v1alpha1.AnnotationClaim, "vm"))
	reservation := &v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.IPReservationSpec{Domain: w.domain, Ranges: []string{address}}}
	w.create(t, reservation)
	claim := w.claim(t, "vm", "have a pod", func(s v1alpha1.IPClaimStatus) bool { return s.Pod == "vm" })
	w.status(t, reservation, v1alpha1.ConditionReady, metav1.ConditionTrue, "1 stay")
	c.Eventually(t, "the pool's counts", func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if pool.Status.Allocated != 1 {
			return fmt.Errorf("they are %+v", pool.Status)
		}
		return nil
	})
	for _, tc := range []struct {
		object client.Object
		wrong  string
		status func(client.Object) any
	}{
		{pool, `{"status":{"free":1,"allocated":0}}`, func(o client.Object) any { return o.(*v1alpha1.IPPool).Status }},
		{claim, `{"status":{"pod":null,"heldSince":"2000-01-01T00:00:00Z"}}`, func(o client.Object) any { return o.(*v1alpha1.IPClaim).Status }},
		{reservation, `{"status":{"inUse":null}}`, func(o client.Object) any { return o.(*v1alpha1.IPReservation).Status }},
	} {
		want := tc.status(tc.object.DeepCopyObject().(client.Object))
		got := tc.object.DeepCopyObject().(client.Object)
		if err := c.Client.Status().Patch(t.Context(), got, client.RawPatch("application/merge-patch+json", []byte(tc.wrong))); err != nil {
			t.Fatal(err)
		}
		if cmp.Equal(want, tc.status(got)) {
			t.Fatalf("%T: nothing is wrong with %+v", got, want)
		}
		c.Eventually(t, fmt.Sprintf("the status of a %T to be corrected", got), func(ctx context.Context) error {
			if err := c.Client.Get(ctx, client.ObjectKeyFromObject(got), got); err != nil {
				return err
			}
			if diff := cmp.Diff(want, tc.status(got)); diff != "" {
				return fmt.Errorf("-want +got:\n%s", diff)
			}
			return nil
		})
	}
}
