package native

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/audit"
)

// noted records events.
type noted struct {
	events.EventRecorder
	texts []string
}

//nolint:revive // The signature is client-go's.
func (n *noted) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	n.texts = append(n.texts, kind+" "+reason+" "+args[0].(string))
}

// The findings of an audit become a condition of the pool and, once, an event. Neither
// names a holder. Before the first audit there is no condition.
func TestShowAudit(t *testing.T) {
	finding := audit.Finding{
		Invariant: audit.OneHolder, Domain: "default", Address: "10.0.0.7", What: "2 PodAttachments name the address",
		Evidence: "PodAttachment shop/web-0",
	}
	var found []audit.Finding
	known := false
	e := &noted{}
	r := &PoolStatus{Events: e, Audited: func(*ipam.Pool) ([]audit.Finding, bool) { return found, known }}
	o := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", Generation: 3}}
	show := func(want string) {
		t.Helper()
		r.showAudit(o, nil)
		got := ""
		for _, c := range o.Status.Conditions {
			got += string(c.Status) + " " + c.Reason + " " + c.Message
		}
		if got != want {
			t.Errorf("conditions: %s\nwant: %s", got, want)
		}
	}
	show("")
	known = true
	const clean = "True Audited every address has one holder at most, and every slot is explained"
	show(clean)
	found = []audit.Finding{finding}
	const one = "I1 10.0.0.7: 2 PodAttachments name the address"
	show("False NotOneHolder " + one + ": see fairlead ipam audit")
	show("False NotOneHolder " + one + ": see fairlead ipam audit")
	found = []audit.Finding{finding, finding, finding, finding, finding}
	show("False NotOneHolder " + strings.Repeat(one+"; ", 3) + "and 2 more: see fairlead ipam audit")
	found = nil
	show(clean)
	if len(e.texts) != 2 || !strings.HasPrefix(e.texts[0], "Warning Inconsistent "+one) || strings.Contains(strings.Join(e.texts, ""), "web-0") {
		t.Errorf("events: %q", e.texts)
	}
}
