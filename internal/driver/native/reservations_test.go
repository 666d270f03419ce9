package native

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// A reservation is Ready once its current generation is in force, not as soon as its spec
// is valid.
func TestReservationIsReadyWhenInForce(t *testing.T) {
	c := cluster.New(t)
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Domain: c.Namespace, Ranges: []string{"10.0.0.1-10.0.0.3"}})
	o := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec:       v1alpha1.IPReservationSpec{Domain: c.Namespace, Ranges: []string{"10.0.0.1"}},
	}
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Client.Delete(context.Background(), o) })
	r := &Reservations{Client: c.Client, Pools: d.pools, Store: d.store, Synced: func() bool { return true }}
	ready := func() *metav1.Condition {
		t.Helper()
		key := client.ObjectKeyFromObject(o)
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Get(t.Context(), key, o); err != nil {
			t.Fatal(err)
		}
		is := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		if (result.RequeueAfter > 0) == (is != nil && is.ObservedGeneration == o.Generation) {
			t.Errorf("again after %v, condition %+v", result.RequeueAfter, is)
		}
		return is
	}
	if is := ready(); is != nil {
		t.Errorf("before the pools know it: %+v", is)
	}
	d.pools.reserve(o)
	if is := ready(); is == nil || is.Status != metav1.ConditionTrue {
		t.Errorf("when the pools know it: %+v", is)
	}
	if got := d.get(drivertest.Request(1)); !strings.HasPrefix(got, "a 10.0.0.2") {
		t.Errorf("got %s", got)
	}
	o.Spec.Ranges = []string{"10.0.0.1", "10.0.0.3"}
	if err := c.Client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if is := ready(); is.ObservedGeneration == o.Generation {
		t.Errorf("before the pools know the change: %+v", is)
	}
	d.pools.reserve(o)
	if is := ready(); is.ObservedGeneration != o.Generation || o.Status.Summary != "10.0.0.1,10.0.0.3" {
		t.Errorf("when the pools know the change: %+v, summary %q", is, o.Status.Summary)
	}
	d.refused(drivertest.Request(2), "Exhausted")
}
