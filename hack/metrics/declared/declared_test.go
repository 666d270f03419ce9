package declared

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestDescribe(t *testing.T) {
	for name, test := range map[string]struct {
		help   string
		names  []string
		text   string
		labels []Label
		err    string
	}{
		"no labels": {help: "Pods that wait.", text: "Pods that wait."},
		"lists": {
			help: "Ports. By state: ready, held (by a claim, or two). By pool: the name.", names: []string{"pool", "state"}, text: "Ports.",
			labels: []Label{{Name: "pool", Text: "the name"}, {Name: "state", Text: "ready, held (by a claim, or two)", Values: []string{"ready", "held"}}},
		},
		"sentences":       {help: "It is 1. Else 0. By kind: a.", names: []string{"kind"}, text: "It is 1. Else 0.", labels: []Label{{Name: "kind", Text: "a", Values: []string{"a"}}}},
		"no clause":       {help: "Ports by state.", names: []string{"state"}, err: `lacks a clause "By state: "`},
		"no label":        {help: "Ports. By state: ready.", err: `a clause for the label "state"`},
		"neither of both": {help: "Ports. By state: ready or held.", names: []string{"state"}, err: `"ready or held" is no value`},
		"an empty clause": {help: "Ports. By state: .", names: []string{"state"}, err: `"" is no value`},
	} {
		t.Run(name, func(t *testing.T) {
			text, labels, err := describe(test.help, test.names)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if diff := cmp.Diff(test.text, text); diff != "" || err != nil {
				t.Errorf("error %v, text (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(test.labels, labels, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}

// A metric that cannot be described is an error, so that none is left out silently.
func TestOddDeclarations(t *testing.T) {
	_, err := of("../../..", []string{"./hack/metrics/declared/testdata/odd"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"main.go:14:3: the options of a metric are no literal",
		"main.go:15:3: Name: not a constant text",
		"main.go:16:3: labels of c: not a literal list",
		`main.go:17:3: d: the help lacks a clause "By kind: "`,
		"main.go:18:3: the metric has constant labels",
		"main.go:19:3: prometheus.NewSummary is not read from the source",
		"twice_total is declared in ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error:\n%v", want, err)
		}
	}
}

// TestMetrics checks every metric of the programs: promlint accepts it, it has a help, and
// the number of its series is bounded.
func TestMetrics(t *testing.T) {
	metrics, err := Of("../../..")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, m := range metrics {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Type)
		if m.Type == "histogram" {
			fmt.Fprintf(&text, "%s_bucket{le=\"+Inf\"} 1\n%s_sum 1\n%s_count 1\n", m.Name, m.Name, m.Name)
		} else {
			fmt.Fprintf(&text, "%s 1\n", m.Name)
		}
		checkMetric(t, m)
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	for _, program := range []string{"fairlead-controller", "fairlead-node"} {
		if !slices.ContainsFunc(metrics, func(m Metric) bool { return slices.Contains(m.Programs, program) }) {
			t.Errorf("%s has no metric", program)
		}
	}
}

// open are the labels whose values are not known in advance. There are few of each in a
// cluster: none is chosen by the author of a pod.
var open = []string{"code", "driver", "kind", "method", "operation", "pool", "status"}

func checkMetric(t *testing.T, m Metric) {
	t.Helper()
	if !regexp.MustCompile(`^(fairlead|kubelet)_`).MatchString(m.Name) {
		t.Errorf("%s has another prefix than fairlead_", m.Name)
	}
	if len(m.Help) < 10 {
		t.Errorf("%s has the help %q, which explains nothing", m.Name, m.Help)
	}
	for _, l := range m.Labels {
		if len(l.Values) == 0 && !slices.Contains(open, l.Name) {
			t.Errorf("%s: the label %s has any number of values; only %q may", m.Name, l.Name, open)
		}
	}
}
