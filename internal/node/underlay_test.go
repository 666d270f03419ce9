package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/test/nodetest"
)

// A node whose addresses the other nodes do not accept reports it, and sends no packets
// that would get no answer.
func TestUnconfirmedNodeSaysSo(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.encapsulation = hostnet.EncapsulationAuto
		w.restart()
		w.api.putNetwork(nodetest.ConfirmedNetwork("n2", "10.244.2.0/26", []string{"192.168.78.12/24"}, []string{"192.168.78.12/32"}))
		condition := func(kind string) *metav1.Condition {
			filtered()
			nn, _ := w.own()
			return meta.FindStatusCondition(nn.Status.Conditions, kind)
		}
		confirm := func(underlay ...string) {
			nn, _ := w.own()
			nn = nn.DeepCopy()
			nn.Spec.Underlay = underlay
			w.api.putNetwork(nn)
		}
		if c := condition(v1alpha1.ConditionConfirmed); c != nil {
			t.Errorf("a controller that confirms nothing: %+v", c)
		}
		for _, tc := range []struct {
			underlay []string
			want     metav1.Condition
			routed   string
		}{
			{[]string{"192.0.2.99/32"}, metav1.Condition{
				Status: metav1.ConditionFalse, Reason: "NotConfirmed",
				Message: "other nodes do not reach pods here: this node says that it has the address 192.168.77.11, " +
					"which neither its Node nor underlayCIDRs in the controller's configuration confirms",
			}, "NotReachable"},
			{[]string{"192.168.77.11/32"}, metav1.Condition{
				Status: metav1.ConditionTrue, Reason: "Confirmed", Message: "other nodes use the addresses of this one",
			}, "Routed"},
		} {
			confirm(tc.underlay...)
			tc.want.Type = v1alpha1.ConditionConfirmed
			if diff := cmp.Diff(&tc.want, condition(v1alpha1.ConditionConfirmed), cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
				t.Error(diff)
			}
			if c := condition(v1alpha1.ConditionRouted); c == nil || c.Reason != tc.routed {
				t.Errorf("%v: routed %+v, want %s", tc.underlay, c, tc.routed)
			}
		}
		w.filter.want(t, "peers", "192.168.78.12")
		w.filter.want(t, "tunnel", "192.168.77.11")
	})
}
