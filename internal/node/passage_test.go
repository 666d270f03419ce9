package node

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/nft/hostrules"
	"fairlead.dev/fairlead/internal/node/hostnet"
)

// fakeRules are the rules of other programs.
type fakeRules struct {
	mu    sync.Mutex
	drop  func(hostrules.Packet) hostrules.Found // nil lets all through
	way   host.WayBack                           // of all packets
	fail  error
	looks int
}

func (f *fakeRules) FollowRules(packets []hostrules.Packet) ([]hostrules.Found, *hostrules.Interest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	out := make([]hostrules.Found, len(packets))
	for i, p := range packets {
		if f.drop != nil {
			out[i] = f.drop(p)
		}
	}
	return out, &hostrules.Interest{}, f.fail
}

func (f *fakeRules) WaysBack(all []host.Arrival) ([]host.WayBack, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Repeat([]host.WayBack{f.way}, len(all)), nil
}

func (f *fakeRules) set(change func(*fakeRules)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// forwarded returns the condition that the API server has.
func (w *testNode) forwarded() *metav1.Condition {
	filtered()
	filtered()
	nn, _ := w.own()
	c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionForwarded)
	if c != nil {
		c = c.DeepCopy()
		c.LastTransitionTime = metav1.Time{}
	}
	return c
}

func TestForwarded(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		want := func(status metav1.ConditionStatus, reason, message string) {
			t.Helper()
			c := &metav1.Condition{Type: v1alpha1.ConditionForwarded, Status: status, Reason: reason, Message: message}
			if diff := cmp.Diff(c, w.forwarded()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		const all = "no rule of the host drops what pods send or get"
		want(metav1.ConditionTrue, "Forwarded", all)
		// A rule of another program drops packets and is removed again. The kernel
		// reports each change.
		change := func(c host.RuleChange, f func(*fakeRules)) {
			w.rules.set(f)
			w.filter.mu.Lock()
			others := w.filter.others
			w.filter.mu.Unlock()
			others(c)
		}
		base := host.RuleChange{Family: 2, Table: "filter", Chain: "FORWARD", Base: true}
		verdict := func(v hostrules.Verdict) func(*fakeRules) {
			return func(f *fakeRules) {
				f.drop = func(p hostrules.Packet) (x hostrules.Found) {
					if p.Out == "fairlead0" || p.Out == "eth0" {
						x = hostrules.Found{Verdict: v, By: "the policy of chain FORWARD of the nftables ip filter"}
					}
					return x
				}
			}
		}
		change(base, verdict(hostrules.Drops))
		want(metav1.ConditionFalse, "Dropped", "the policy of chain FORWARD of the nftables ip filter drops what is sent "+
			"from pod to pod here (IPv4), from pods here to the outside (IPv4); "+hostnet.SeeNetwork)
		// It does not affect STATUS.
		if err := w.network.canServe(); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		change(base, verdict(hostrules.MayDrop))
		want(metav1.ConditionUnknown, "NotSure", "the policy of chain FORWARD of the nftables ip filter may drop what is sent "+
			"from pod to pod here (IPv4), from pods here to the outside (IPv4); "+hostnet.SeeNetwork)
		change(base, func(f *fakeRules) { f.drop, f.way = nil, host.WayBack{Astray: true, Refused: true} })
		want(metav1.ConditionFalse, "ReversePath", "the reverse path filter of fairlead0 (rp_filter 1) drops what is sent "+
			"from pod to pod here (IPv4), from pods here to the outside (IPv4); "+hostnet.SeeNetwork)
		change(host.RuleChange{}, func(f *fakeRules) { f.way, f.fail = host.WayBack{}, errors.New("no nftables") })
		want(metav1.ConditionUnknown, "NotSure", "not known: no nftables")
		change(base, func(f *fakeRules) { f.fail = nil })
		want(metav1.ConditionTrue, "Forwarded", all)

		// Neither changes of a chain that no packet reaches nor a storm of changes cause
		// an inspection each.
		looks := func() int {
			w.rules.mu.Lock()
			defer w.rules.mu.Unlock()
			return w.rules.looks
		}
		before := looks()
		for range 100 {
			change(host.RuleChange{Family: 2, Table: "filter", Chain: "KUBE-SVC-1"}, func(*fakeRules) {})
		}
		<-time.After(2 * hostnet.RulesPace)
		settle()
		if n := looks() - before; n > 1 { // the minute's may come between
			t.Errorf("%d inspections for a chain that no packet reaches", n)
		}
		before = looks()
		for range 100 {
			change(base, func(*fakeRules) {})
		}
		<-time.After(2 * hostnet.RulesPace)
		settle()
		if n := looks() - before; n < 1 || n > 2 {
			t.Errorf("%d looks for one storm", n)
		}
	})
}
