package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// runbookURL is the address of the runbook.
const runbookURL = "https://fairlead.dev/fairlead/docs/operator/runbook.md#"

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Each alert has a severity that observe.md explains, a description, and an entry in the
// runbook.
func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      struct{ Severity string }
				Annotations struct {
					Summary, Description string
					Runbook              string `json:"runbook_url"`
				}
			}
		}
	}
	readYAML(t, "../deploy/monitoring/alerts.yaml", &file)
	all := pages(t)
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^##+ (.*)$").FindAllStringSubmatch(all["operator/runbook.md"], -1) {
		headings[anchor(m[1])] = true
	}
	n := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			if !strings.Contains(all["operator/observe.md"], "| `"+r.Labels.Severity+"` |") {
				t.Errorf("%s: observe.md does not explain the severity %q", r.Alert, r.Labels.Severity)
			}
			if a := r.Annotations; len(a.Summary) < 10 || len(a.Description) <= len(a.Summary) {
				t.Errorf("%s: summary %q, description %q; want more", r.Alert, a.Summary, a.Description)
			}
			if heading, ok := strings.CutPrefix(r.Annotations.Runbook, runbookURL); !ok || !headings[heading] {
				t.Errorf("%s: the runbook has no entry %s", r.Alert, r.Annotations.Runbook)
			}
		}
	}
	if n == 0 {
		t.Error("no alerts")
	}
}

// anchor returns the anchor of a heading, as GitHub and its like make it.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(kept, " ", "-")
}

// The PrometheusRule has the alerts of the rules file.
func TestPrometheusRule(t *testing.T) {
	var want any
	var got struct{ Spec any }
	readYAML(t, "../deploy/monitoring/alerts.yaml", &want)
	readYAML(t, "../deploy/monitoring/rules.yaml", &got)
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("rules.yaml is not up to date, run hack/generate.sh (-alerts.yaml +rules.yaml):\n%s", diff)
	}
}
