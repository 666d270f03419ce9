package native

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/audit"
)

// maxFindings is the largest number of findings that a condition lists.
const maxFindings = 3

// auditReasons are the reasons of the condition Consistent, by invariant.
var auditReasons = map[string]string{
	audit.OneHolder: "NotOneHolder",
	audit.Explained: "Unexplained",
	audit.AddsUp:    "CountsDiffer",
}

// audits enqueues all pools when the result of the audit changes.
func (r *PoolStatus) audits(_ context.Context, q queue) error {
	if r.OnAudit != nil {
		r.OnAudit(func() {
			for _, name := range r.Pools.Names() {
				q.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
			}
		})
	}
	return nil
}

// showAudit sets the condition Consistent from the findings of the last audit. Before the
// first audit it changes nothing. It posts an event if there are findings and their text
// has changed.
func (r *PoolStatus) showAudit(o *v1alpha1.IPPool, pool *ipam.Pool) {
	if r.Audited == nil {
		return
	}
	found, known := r.Audited(pool)
	if !known {
		return // the findings of an earlier leader stay until this one has audited
	}
	c := metav1.Condition{
		Type: v1alpha1.ConditionConsistent, Status: metav1.ConditionTrue, Reason: "Audited",
		Message: "every address has one holder at most, and every slot is explained", ObservedGeneration: o.Generation,
	}
	if len(found) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, auditReasons[found[0].Invariant], auditText(found)
	}
	was := meta.FindStatusCondition(o.Status.Conditions, c.Type)
	if c.Status == metav1.ConditionFalse && (was == nil || was.Message != c.Message) && r.Events != nil {
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, "Inconsistent", "Audit", "%s", c.Message)
	}
	meta.SetStatusCondition(&o.Status.Conditions, c)
}

// auditText lists the first maxFindings findings. It names no holder, since readers of
// pools and events may not be allowed to know the holder of an address.
func auditText(found []audit.Finding) string {
	var texts []string
	for _, f := range found[:min(len(found), maxFindings)] {
		texts = append(texts, fmt.Sprintf("%s %s: %s", f.Invariant, f.Address, f.What))
	}
	if more := len(found) - maxFindings; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ") + ": see fairlead ipam audit"
}
