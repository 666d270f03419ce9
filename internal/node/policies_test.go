package node

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
)

// TestForwardPolicy: a firewall of the host that forwards nothing by default is named, and
// the policies are read only when a chain with a hook changes.
func TestForwardPolicy(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		want := func(status metav1.ConditionStatus, reason, message string) {
			t.Helper()
			<-time.After(2 * time.Minute) // also after an error it is renewed
			settle()
			nn, _ := w.own()
			c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionForwardPolicy).DeepCopy()
			c.LastTransitionTime = metav1.Time{}
			if diff := cmp.Diff(&metav1.Condition{Type: v1alpha1.ConditionForwardPolicy, Status: status, Reason: reason, Message: message}, c); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		change := func(c host.RuleChange, f func(*fakeHost)) {
			w.host.mu.Lock()
			f(w.host)
			w.host.mu.Unlock()
			w.filter.mu.Lock()
			others := w.filter.others
			w.filter.mu.Unlock()
			others(c)
		}
		const accept = "no forward chain of nftables has policy drop"
		want(metav1.ConditionTrue, "Accept", accept)
		base := host.RuleChange{Family: 2, Table: "filter", Chain: "FORWARD", Base: true}
		change(base, func(h *fakeHost) { h.chains = []string{"b of table ip b", "a of table ip a"} })
		want(metav1.ConditionUnknown, "Drop", "policy drop in a of table ip a, b of table ip b: packets of pods pass only by rules that accept them; "+
			"fairlead check tests it; see docs/operator/network.md, A firewall of the host")
		if err := w.network.canServe(); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		change(host.RuleChange{}, func(h *fakeHost) { h.fail = errors.New("no nftables") })
		want(metav1.ConditionUnknown, "NotRead", "no nftables")
		w.host.set(func(h *fakeHost) { h.fail, h.chains = nil, nil })
		want(metav1.ConditionTrue, "Accept", accept)

		w.host.mu.Lock()
		before := w.host.reads
		w.host.mu.Unlock()
		for range 100 {
			change(host.RuleChange{Family: 2, Table: "filter", Chain: "KUBE-SVC-1"}, func(*fakeHost) {})
		}
		want(metav1.ConditionTrue, "Accept", accept)
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		if n := w.host.reads - before; n != 0 {
			t.Errorf("%d reads for chains without a hook", n)
		}
	})
}

// Kernels from 6.4 on do not name the hook of a chain that is deleted.
func TestForwardPolicyOfADeletedChain(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		tell := func(c host.RuleChange, chains []string) {
			w.host.mu.Lock()
			w.host.chains = chains
			w.host.mu.Unlock()
			w.filter.mu.Lock()
			others := w.filter.others
			w.filter.mu.Unlock()
			others(c)
			<-time.After(2 * time.Minute)
			settle()
		}
		status := func() string {
			nn, _ := w.own()
			return meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionForwardPolicy).Reason
		}
		tell(host.RuleChange{Family: 2, Table: "filter", Chain: "FORWARD", Base: true}, []string{"FORWARD of table ip filter"})
		if got := status(); got != "Drop" {
			t.Fatal(got)
		}
		tell(host.RuleChange{Family: 2, Table: "filter", Chain: "FORWARD", Deleted: true}, nil)
		<-time.After(24 * time.Hour)
		settle()
		if got := status(); got != "Accept" {
			t.Errorf("after the deletion of the chain: %s", got)
		}
	})
}
