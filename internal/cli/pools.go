package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/output"
)

// poolList is the output of `pools -o json`.
type poolList struct {
	// Pools by name.
	Pools []poolView `json:"pools"`
}

// poolView is one IPPool. Usable = free + allocated + cooling + held +
// reserved; counts stop at 2^63-1, which an IPv6 pool may exceed.
type poolView struct {
	Name      string             `json:"name"`
	Domain    string             `json:"domain"`
	Placement v1alpha1.Placement `json:"placement"`
	Usable    int64              `json:"usable"`
	Free      int64              `json:"free"`
	Allocated int64              `json:"allocated"`
	Cooling   int64              `json:"cooling"`
	Held      int64              `json:"held"`
	Reserved  int64              `json:"reserved"`
	// Ready is True, False, or Unknown until the controller has processed the current
	// spec. Reason and Message explain why it is not True.
	Ready     metav1.ConditionStatus `json:"ready"`
	Reason    string                 `json:"reason,omitempty"`
	Message   string                 `json:"message,omitempty"`
	Exhausted bool                   `json:"exhausted"`
	CreatedAt *time.Time             `json:"createdAt,omitempty"`
}

// reasonNotSeen: the controller has not processed the current spec of a pool.
const reasonNotSeen = "NotSeen"

func buildPools(pools []v1alpha1.IPPool) []poolView {
	out := []poolView{}
	for i := range pools {
		out = append(out, buildPool(&pools[i]))
	}
	slices.SortFunc(out, func(a, b poolView) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func buildPool(p *v1alpha1.IPPool) poolView {
	v := poolView{
		Name:      p.Name,
		Domain:    p.Spec.Domain,
		Placement: p.Spec.Placement,
		Usable:    p.Status.Usable,
		Free:      p.Status.Free,
		Allocated: p.Status.Allocated,
		Cooling:   p.Status.Cooling,
		Held:      p.Status.Held,
		Reserved:  p.Status.Reserved,
		Ready:     metav1.ConditionUnknown,
		Reason:    reasonNotSeen,
		Message:   "the controller has not processed this spec yet",
		Exhausted: meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionExhausted),
		CreatedAt: output.Timestamp(p.CreationTimestamp.Time),
	}
	ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.ObservedGeneration < p.Generation {
		return v
	}
	v.Ready, v.Reason, v.Message = ready.Status, ready.Reason, ready.Message
	if v.Ready == metav1.ConditionTrue {
		v.Reason, v.Message = "", ""
	}
	return v
}

// mark returns Ready, Exhausted, or the reason why a pool is not ready.
func (p poolView) mark() string {
	switch {
	case p.Ready != metav1.ConditionTrue:
		return p.Reason
	case p.Exhausted:
		return v1alpha1.ConditionExhausted
	}
	return v1alpha1.ConditionReady
}

// poolsText returns the table, and below it the problems of pools that are not ready.
func poolsText(v poolList, now time.Time) string {
	if len(v.Pools) == 0 {
		return "No pools.\n"
	}
	rows := [][]string{{"NAME", "DOMAIN", "PLACEMENT", "USAGE", "USABLE", "FREE", "ALLOCATED", "COOLING", "HELD", "RESERVED", "STATE", "AGE"}}
	var notes []string
	for _, p := range v.Pools {
		rows = append(rows, []string{
			p.Name, p.Domain, string(p.Placement), usageBar(p),
			count(p.Usable), count(p.Free), count(p.Allocated), count(p.Cooling), count(p.Held), count(p.Reserved),
			p.mark(), output.Age(p.CreatedAt, now),
		})
		if p.Ready != metav1.ConditionTrue {
			notes = append(notes, fmt.Sprintf("%s: %s: %s", p.Name, p.Reason, p.Message))
		}
	}
	return output.Table(rows) + output.Notes(notes)
}

// count formats a count; from 10^15 on, as in IPv6 pools, with two digits and an
// exponent.
func count(n int64) string {
	if n >= 1e15 {
		return fmt.Sprintf("%.2g", float64(n))
	}
	return strconv.FormatInt(n, 10)
}
