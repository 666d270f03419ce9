package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/run"
)

// Bounds of the status.
const (
	maxLeft     = 100
	maxStatuses = 16
	// fewLeft and fewPercent are when a quota is nearly used up.
	fewLeft    = 3
	fewPercent = 5
)

// resources are those of the quotas that Fairlead uses.
var resources = []string{"port", "security_group", "security_group_rule", "network", "subnet"}

// state is what one look at the cloud found.
type state struct {
	// err is why the cloud does not answer. Then the rest is unknown, except for project.
	err     error
	project string
	ports   map[string]int // by status
	left    []v1alpha1.CloudLeft
	quotas  map[string]cloud.Quota
	// quotaErr is why the quotas are unknown.
	quotaErr error
	// abilities are nil if they were not tried.
	abilities []cloud.Capability
}

// classify counts the ports of the cluster, and finds those that no record explains. pod
// reports which ports of owned are those of this cluster. waiting are the interfaces that
// garbage collection releases next.
func (s *state) classify(tagged, owned []cloud.Port, waiting []driver.Ref, pod func(cloud.Port) (mine bool, odd string)) {
	s.ports = map[string]int{}
	there := map[string]bool{}
	count := func(p cloud.Port) {
		if there[p.ID] {
			return
		}
		there[p.ID] = true
		s.ports[p.Status]++
		if _, odd := pod(p); odd != "" {
			s.left = append(s.left, v1alpha1.CloudLeft{ID: run.ClipTo(p.ID, 64), Name: run.ClipTo(p.Name, 255), Reason: run.ClipTo(odd, 512)})
		}
	}
	for _, p := range tagged {
		count(p)
	}
	for _, p := range owned {
		if mine, _ := pod(p); mine {
			count(p)
		}
	}
	for _, ref := range waiting {
		id := ref.Interface.Binding.Port()
		if id != "" && !there[id] {
			continue // it has gone since that pass
		}
		s.left = append(s.left, v1alpha1.CloudLeft{
			ID: id, Name: run.ClipTo(strings.Join([]string{ref.Namespace, ref.PodName, ref.Owner.Interface}, "/"), 255), Collected: true,
			Reason: "its pod is gone, and no PodAttachment names it",
		})
	}
	slices.SortFunc(s.left, func(a, b v1alpha1.CloudLeft) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
}

// into writes the state into a status. It keeps the former values of everything that is not
// known now.
func (s *state) into(o *v1alpha1.CloudStatus, now metav1.Time) {
	o.Project = cmp.Or(run.ClipTo(s.project, 64), o.Project)
	if s.ports == nil {
		c := metav1.Condition{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionFalse, Reason: "NoAnswer", Message: "the controller has not connected to OpenStack yet"}
		if s.err != nil {
			c.Message = run.Clip(s.err.Error())
		}
		meta.SetStatusCondition(&o.Conditions, c)
		return
	}
	o.CheckedAt = &now
	o.Ports, o.Summary = nil, "none"
	var words []string
	for _, status := range slices.Sorted(maps.Keys(s.ports))[:min(len(s.ports), maxStatuses)] {
		o.Ports = append(o.Ports, v1alpha1.CloudCount{Name: run.ClipTo(status, 64), Count: int64(s.ports[status])})
		words = append(words, fmt.Sprintf("%d %s", s.ports[status], status))
	}
	if len(words) > 0 {
		o.Summary = run.ClipTo(strings.Join(words, ", "), 256)
	}
	o.Left, o.LeftCount = s.left[:min(len(s.left), maxLeft)], int64(len(s.left))
	meta.SetStatusCondition(&o.Conditions, metav1.Condition{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, Reason: "Answered", Message: "OpenStack answers"})
	meta.SetStatusCondition(&o.Conditions, s.explained())
	if s.quotaErr == nil {
		o.Quotas = nil
		for _, name := range resources {
			if q, ok := s.quotas[name]; ok {
				o.Quotas = append(o.Quotas, v1alpha1.CloudQuota{Resource: name, Limit: int64(q.Limit), Used: int64(q.Used)})
			}
		}
	}
	meta.SetStatusCondition(&o.Conditions, s.quotaLeft())
	for _, a := range s.abilities {
		c := metav1.Condition{Type: a.Name, Status: metav1.ConditionFalse, Reason: "Tried", Message: run.Clip(a.Reason)}
		if a.Has {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&o.Conditions, c)
	}
}

// explained is the condition of the ports that no record explains.
func (s *state) explained() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionExplained, Status: metav1.ConditionTrue, Reason: "AllExplained", Message: "a pod explains each port of the cluster"}
	if len(s.left) == 0 {
		return c
	}
	due := 0
	for _, l := range s.left {
		if l.Collected {
			due++
		}
	}
	c.Status, c.Reason = metav1.ConditionFalse, "PortsLeft"
	c.Message = fmt.Sprintf("no pod explains %d ports: the next pass of garbage collection releases %d, and leaves %d alone; status.left names them", len(s.left), due, len(s.left)-due)
	return c
}

// quotaLeft is the condition of the quotas. New pods get no ports without quota.
func (s *state) quotaLeft() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionQuotaLeft, Status: metav1.ConditionTrue, Reason: "Enough", Message: "each quota has room"}
	if s.quotaErr != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NotReadable", run.Clip(s.quotaErr.Error())
		if errors.Is(s.quotaErr, cloud.ErrForbidden) {
			c.Message = run.Clip("the credentials may not read the quotas: " + s.quotaErr.Error())
		}
		return c
	}
	var low []string
	for _, name := range resources {
		if q, ok := s.quotas[name]; ok && isLow(q) {
			low = append(low, fmt.Sprintf("%s: %d of %d used", name, q.Used, q.Limit))
		}
	}
	if len(low) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, "QuotaLow"
		c.Message = "raise the quotas of the project, or delete what nothing uses: " + strings.Join(low, "; ")
	}
	return c
}

// isLow reports whether a quota is nearly used up: a few are left, or a few percent. A quota
// that gives only a few has to be used up.
func isLow(q cloud.Quota) bool {
	left := q.Limit - q.Used
	if q.Limit < 0 {
		return false
	}
	if q.Limit <= 10*fewLeft {
		return left <= 0
	}
	return left <= max(fewLeft, q.Limit*fewPercent/100)
}
