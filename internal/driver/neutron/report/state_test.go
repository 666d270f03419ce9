package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

var now = metav1.NewTime(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))

// judged returns a state of a cluster with the given ports of pods. A port is odd or that
// of another cluster if its name has the word "odd" or "other".
func judged(tagged, owned []cloud.Port, waiting ...driver.Ref) state {
	s := state{project: "k8s"}
	s.classify(tagged, owned, waiting, func(p cloud.Port) (bool, string) {
		if strings.Contains(p.Name, "odd") {
			return true, "its name was changed"
		}
		return !strings.Contains(p.Name, "other"), ""
	})
	return s
}

func gone(pod, port string) driver.Ref {
	return driver.Ref{
		Owner:     driver.Owner{Namespace: "shop", PodName: pod, Interface: "eth0"},
		Interface: v1alpha1.Interface{Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: port}}},
	}
}

// A port is counted once, with or without a tag, and that of another cluster never. A port
// that went between the pass and the look is left out.
func TestPorts(t *testing.T) {
	s := judged(
		[]cloud.Port{{ID: "a", Status: "ACTIVE"}, {ID: "trunk", Status: "DOWN"}},
		[]cloud.Port{{ID: "a", Status: "ACTIVE"}, {ID: "untagged", Status: "ACTIVE"}, {ID: "x", Name: "other", Status: "ACTIVE"}, {ID: "o", Name: "odd", Status: "ERROR"}},
		gone("cart", "a"), gone("went", "b"),
	)
	var got v1alpha1.CloudStatus
	s.into(&got, now)
	want := v1alpha1.CloudStatus{
		CheckedAt: &now, Project: "k8s", Summary: "2 ACTIVE, 1 DOWN, 1 ERROR",
		Ports: []v1alpha1.CloudCount{{Name: "ACTIVE", Count: 2}, {Name: "DOWN", Count: 1}, {Name: "ERROR", Count: 1}},
		Left: []v1alpha1.CloudLeft{
			{ID: "o", Name: "odd", Reason: "its name was changed"},
			{ID: "a", Name: "shop/cart/eth0", Collected: true, Reason: "its pod is gone, and no PodAttachment names it"},
		},
		LeftCount: 2,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(v1alpha1.CloudStatus{}, "Conditions")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestConditions(t *testing.T) {
	quotas := func(used, limit int) map[string]cloud.Quota {
		return map[string]cloud.Quota{"port": {Limit: limit, Used: used}, "router": {Limit: 1, Used: 1}}
	}
	for name, test := range map[string]struct {
		state state
		want  []string
	}{
		"well":          {state{ports: map[string]int{}, quotas: quotas(1, 500)}, []string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft True Enough"}},
		"no connection": {state{}, []string{"Connected False NoAnswer"}},
		"away":          {state{err: errors.New("list ports: unavailable (HTTP 503, request req-1)")}, []string{"Connected False NoAnswer"}},
		"left": {
			state{ports: map[string]int{}, quotas: quotas(1, -1), left: []v1alpha1.CloudLeft{{ID: "a"}}},
			[]string{"Connected True Answered", "Explained False PortsLeft", "QuotaLeft True Enough"},
		},
		"a few ports left":        {state{ports: map[string]int{}, quotas: quotas(97, 100)}, []string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft False QuotaLow"}},
		"some ports left":         {state{ports: map[string]int{}, quotas: quotas(94, 100)}, []string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft True Enough"}},
		"a small quota":           {state{ports: map[string]int{}, quotas: quotas(8, 10)}, []string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft True Enough"}},
		"a small quota, all used": {state{ports: map[string]int{}, quotas: quotas(10, 10)}, []string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft False QuotaLow"}},
		"quotas not readable": {
			state{ports: map[string]int{}, quotaErr: fmt.Errorf("read quotas: %w", cloud.ErrForbidden)},
			[]string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft Unknown NotReadable"},
		},
		"abilities": {
			state{ports: map[string]int{}, abilities: []cloud.Capability{{Name: cloud.BindHost, Reason: "policy"}, {Name: cloud.SetPairs, Has: true, Reason: "done"}}},
			[]string{"Connected True Answered", "Explained True AllExplained", "QuotaLeft True Enough", "BindHost False Tried", "SetPairs True Tried"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o v1alpha1.CloudStatus
			test.state.into(&o, now)
			var got []string
			for _, c := range o.Conditions {
				got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
				if c.Message == "" {
					t.Errorf("%s has no message", c.Type)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

// While the cloud does not answer, the status keeps the last values, with their time.
func TestAwayKeepsTheLastLook(t *testing.T) {
	s := judged([]cloud.Port{{ID: "a", Status: "ACTIVE"}}, nil)
	var o v1alpha1.CloudStatus
	s.into(&o, now)
	away := state{err: errors.New("no answer")}
	away.into(&o, metav1.NewTime(now.Add(time.Hour)))
	if o.Summary != "1 ACTIVE" || !o.CheckedAt.Equal(&now) || o.Conditions[0].Message != "no answer" || o.Project != "k8s" {
		t.Errorf("status %+v", o)
	}
}

// A gauge shows whether OpenStack answered. The others keep the last values while it does
// not, and all end with the term.
func TestGauges(t *testing.T) {
	registry := prometheus.NewRegistry()
	g, err := newGauges(registry)
	if err != nil {
		t.Fatal(err)
	}
	well := judged([]cloud.Port{{ID: "a", Status: "ACTIVE"}}, nil)
	for _, step := range []struct {
		name             string
		do               func()
		connected, ports int
	}{
		{"before the first look", func() {}, 0, 0},
		{"it answers", func() { g.set(well) }, 1, 1},
		{"it is away", func() { g.set(state{err: errors.New("no answer")}) }, 0, 1},
		{"it answers again", func() { g.set(well) }, 1, 1},
		{"another replica leads", g.reset, 0, 0},
	} {
		step.do()
		ports, err := testutil.GatherAndCount(registry, "fairlead_openstack_ports")
		if connected := testutil.ToFloat64(g.connected); err != nil || connected != float64(step.connected) || ports != step.ports {
			t.Errorf("%s: connected %v with %d series of ports, %v; want %d with %d", step.name, connected, ports, err, step.connected, step.ports)
		}
	}
}

// A status has bounds, whatever the cloud answers.
func TestStatusIsBounded(t *testing.T) {
	var ports []cloud.Port
	for i := range 200 {
		ports = append(ports, cloud.Port{ID: fmt.Sprint("port-", i), Name: "odd" + strings.Repeat("é", 200), Status: strings.Repeat("S", 70) + fmt.Sprint(i)})
	}
	s := judged(ports, nil)
	var o v1alpha1.CloudStatus
	s.into(&o, now)
	if len(o.Left) != maxLeft || o.LeftCount != 200 || len(o.Ports) != maxStatuses || len(o.Summary) > 256 || len(o.Ports[0].Name) > 64 || len(o.Left[0].Name) > 255 {
		t.Errorf("%d of %d left, %d statuses, a summary of %d bytes", len(o.Left), o.LeftCount, len(o.Ports), len(o.Summary))
	}
}
