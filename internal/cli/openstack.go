package cli

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/output"
)

// cloudView is how OpenStack serves the cluster.
type cloudView struct {
	Name string `json:"name"`
	// Connected is false if OpenStack does not answer. The rest is then that of CheckedAt.
	Connected bool       `json:"connected"`
	Project   string     `json:"project,omitempty"`
	CheckedAt *time.Time `json:"checkedAt,omitempty"`
	// PortSummary has the ports by status.
	PortSummary string `json:"portSummary"`
	// PortQuota is the limit of the project, -1 for none, and PortsUsed how much of it is
	// used; both are absent if they are not known.
	PortQuota *int64 `json:"portQuota,omitempty"`
	PortsUsed *int64 `json:"portsUsed,omitempty"`
	// Problems are the conditions that need attention, one sentence each.
	Problems []string `json:"problems"`
}

func buildClouds(clouds []v1alpha1.Cloud) []cloudView {
	out := []cloudView{}
	for i := range clouds {
		s := &clouds[i].Status
		v := cloudView{Name: clouds[i].Name, Connected: meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionConnected), Project: s.Project, PortSummary: s.Summary, Problems: []string{}}
		if s.CheckedAt != nil {
			v.CheckedAt = output.Timestamp(s.CheckedAt.Time)
		}
		for _, q := range s.Quotas {
			if q.Resource == "port" {
				v.PortQuota, v.PortsUsed = &q.Limit, &q.Used
			}
		}
		for _, kind := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionBindHost, v1alpha1.ConditionQuotaLeft} {
			if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
				v.Problems = append(v.Problems, explained(kind, c.Reason, c.Message))
			}
		}
		if n := leftAlone(s.Left); n > 0 {
			v.Problems = append(v.Problems, fmt.Sprintf("garbage collection leaves %s alone: see fairlead gc --dry-run", output.Plural(n, "port")))
		}
		out = append(out, v)
	}
	return out
}

// leftAlone returns the number of ports that garbage collection does not release.
func leftAlone(left []v1alpha1.CloudLeft) int {
	n := 0
	for _, l := range left {
		if !l.Collected {
			n++
		}
	}
	return n
}

func cloudsAttention(clouds []cloudView) []string {
	var out []string
	for _, c := range clouds {
		for _, p := range c.Problems {
			out = append(out, "OpenStack "+c.Name+": "+p)
		}
	}
	return out
}

// cloudText returns one line about OpenStack.
func cloudText(c cloudView, now time.Time) string {
	parts := []string{"answers"}
	if !c.Connected {
		parts[0] = "does not answer"
	}
	if c.PortSummary != "" {
		parts = append(parts, "ports "+c.PortSummary)
	}
	if c.PortQuota != nil {
		limit := "no limit"
		if *c.PortQuota >= 0 {
			limit = count(*c.PortQuota)
		}
		parts = append(parts, fmt.Sprintf("quota %s of %s", count(*c.PortsUsed), limit))
	}
	if c.CheckedAt != nil {
		parts = append(parts, "seen "+output.Age(c.CheckedAt, now)+" ago")
	}
	return fmt.Sprintf("OPENSTACK: %s %s\n", c.Name, strings.Join(parts, ", "))
}
