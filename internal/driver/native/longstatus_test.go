package native

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/blocktest"
)

// oneObject is a client that has one object. It records the conditions that are written.
type oneObject struct {
	client.Client
	object  client.Object
	written []metav1.Condition
}

func (c *oneObject) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.IPPool:
		c.object.(*v1alpha1.IPPool).DeepCopyInto(o)
	case *v1alpha1.IPReservation:
		c.object.(*v1alpha1.IPReservation).DeepCopyInto(o)
	}
	return nil
}

func (c *oneObject) Status() client.SubResourceWriter { return statusOf{one: c} }

// statusOf records the conditions of a written status.
type statusOf struct {
	client.SubResourceWriter
	one *oneObject
}

func (s statusOf) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	switch o := o.(type) {
	case *v1alpha1.IPPool:
		s.one.written = o.Status.Conditions
	case *v1alpha1.IPReservation:
		s.one.written = o.Status.Conditions
	}
	return nil
}

// A spec may have more wrong values than a condition can tell: the status shows the first
// ones. The API server would refuse a longer message, and the status would never say that
// the spec is not in effect.
func TestStatusOfManyWrongValues(t *testing.T) {
	wrong := func(n int) (out []string) { // as many as the API server accepts
		for range n {
			out = append(out, strings.Repeat("\U0010ffff", 100))
		}
		return out
	}
	d := start(t, blocktest.NewAPI())
	synced := func() bool { return true }
	pool := &oneObject{object: &v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{Ranges: wrong(64), Excludes: wrong(256)}}}
	reservation := &oneObject{object: &v1alpha1.IPReservation{Spec: v1alpha1.IPReservationSpec{Ranges: wrong(64)}}}
	d.pools.reserve(reservation.object.(*v1alpha1.IPReservation))
	_, poolErr := (&PoolStatus{Client: pool, Pools: d.pools, Store: d.store, Gauges: noGauges{}, Synced: synced}).Reconcile(t.Context(), ctrl.Request{})
	_, reservationErr := (&Reservations{Client: reservation, Pools: d.pools, Store: d.store, Synced: synced}).Reconcile(t.Context(), ctrl.Request{})
	for _, of := range []struct {
		name string
		api  *oneObject
		err  error
	}{{"pool", pool, poolErr}, {"reservation", reservation, reservationErr}} {
		is := meta.FindStatusCondition(of.api.written, v1alpha1.ConditionReady)
		if of.err != nil || is == nil || is.Status != metav1.ConditionFalse {
			t.Errorf("%s: condition %v, error %v", of.name, is, of.err)
			continue
		}
		if n := utf8.RuneCountInString(is.Message); n > run.MaxMessage || !strings.Contains(is.Message, "spec.ranges[0]") {
			t.Errorf("%s: a message of %d characters, at most %d are accepted: %.60q", of.name, n, run.MaxMessage, is.Message)
		}
	}
}
