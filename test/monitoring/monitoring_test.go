// Package monitoring tests what deploy/monitoring brings for Prometheus and Grafana. It is a
// module of its own, because it needs promtool and the parser of Prometheus.
package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/hack/metrics/declared"
	"fairlead.dev/fairlead/test/pages"
)

const (
	root      = "../.."
	alerts    = root + "/deploy/monitoring/alerts.yaml"
	dashboard = root + "/deploy/monitoring/dashboard.json"
)

// promtool runs the tool. It is built without service discovery, which has the libraries of
// every cloud. "go tool" would build it with them: it knows no tags.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "-tags=remove_all_sd", "github.com/prometheus/prometheus/cmd/promtool"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", args, err, out)
	}
}

// unitTests are the files with the unit tests of the alerts.
func unitTests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files with unit tests, %v", len(files), err)
	}
	return files
}

func TestAlerts(t *testing.T) {
	promtool(t, append([]string{"test", "rules"}, unitTests(t)...)...)
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", alerts)
}

// TestPage checks the parts of Prometheus' configuration that docs/operator/observe.md shows,
// with the rules of this repository where the page has them on a machine. The first job has
// the name that the alerts select.
func TestPage(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/operator/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rules, err := filepath.Abs(alerts)
	if err != nil {
		t.Fatal(err)
	}
	config := ""
	for _, b := range pages.Blocks(string(page)) {
		if b.Language == "yaml" {
			config += strings.ReplaceAll(strings.Join(b.Lines, "\n"), "/etc/prometheus/fairlead/alerts.yaml", rules) + "\n"
		}
	}
	for _, want := range []string{"job_name: fairlead-node\n", rules} {
		if !strings.Contains(config, want) {
			t.Errorf("the page's configuration lacks %q:\n%s", want, config)
		}
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "config", file)
}

// rules is the part of a rules file that is read here.
type rules struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

// tests is the part of a file with unit tests that is read here.
type tests struct {
	Tests []struct {
		Input  []struct{ Series, Values string } `json:"input_series"`
		Alerts []struct {
			Name string `json:"alertname"`
			Want []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	}
}

func load(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Each alert has a test in which it fires and one in which it stays silent.
func TestEveryAlertIsTested(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, file := range unitTests(t) {
		var all tests
		load(t, file, &all)
		for _, test := range all.Tests {
			for _, a := range test.Alerts {
				if len(a.Want) > 0 {
					fires[a.Name] = true
				} else {
					silent[a.Name] = true
				}
			}
		}
	}
	var all rules
	load(t, alerts, &all)
	n := 0
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			n++
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: a test makes it fire: %v, stay silent: %v", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
	if n == 0 {
		t.Error("no alerts")
	}
}

// The expressions of alerts and of the dashboard, and the series of the unit tests, name
// metrics that the programs declare, with their labels and values.
func TestMetricsExist(t *testing.T) {
	metrics, err := declared.Of(root)
	if err != nil {
		t.Fatal(err)
	}
	var all rules
	load(t, alerts, &all)
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			checkExpression(t, metrics, r.Alert, r.Expr)
		}
	}
	for _, file := range unitTests(t) {
		var all tests
		load(t, file, &all)
		for _, test := range all.Tests {
			for _, s := range test.Input {
				checkExpression(t, metrics, file, s.Series)
			}
		}
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			checkExpression(t, metrics, p.Title, target.expression())
		}
	}
}

// checkExpression checks the metrics that an expression selects.
func checkExpression(t *testing.T, metrics []declared.Metric, where, text string) {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %q: %v", where, text, err)
		return
	}
	found := false
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			found = true
			if err := exists(metrics, s); err != nil {
				t.Errorf("%s: %q: %v", where, text, err)
			}
		}
		return nil
	})
	if !found {
		t.Errorf("%s: %q selects no metric", where, text)
	}
}

// ofTargets are the labels that Prometheus adds to each series.
var ofTargets = []string{"job", "instance", "node"}

// exists returns an error if no program has the series of a selector.
func exists(metrics []declared.Metric, s *parser.VectorSelector) error {
	if s.Name == "up" {
		return nil
	}
	i := slices.IndexFunc(metrics, func(m declared.Metric) bool {
		if m.Type == "histogram" {
			return slices.Contains([]string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}, s.Name)
		}
		return m.Name == s.Name
	})
	if i < 0 {
		return fmt.Errorf("no program has the metric %s", s.Name)
	}
	for _, m := range s.LabelMatchers {
		if m.Name == labels.MetricName || slices.Contains(ofTargets, m.Name) || m.Name == "le" && strings.HasSuffix(s.Name, "_bucket") {
			continue
		}
		j := slices.IndexFunc(metrics[i].Labels, func(l declared.Label) bool { return l.Name == m.Name })
		if j < 0 {
			return fmt.Errorf("%s has no label %s", s.Name, m.Name)
		}
		values := metrics[i].Labels[j].Values
		for v := range strings.SplitSeq(m.Value, "|") {
			if len(values) > 0 && !slices.Contains(values, v) {
				return fmt.Errorf("%s: the label %s is never %q, only %q", s.Name, m.Name, v, values)
			}
		}
	}
	return nil
}

// A selector of something that no program has is found.
func TestExists(t *testing.T) {
	metrics := []declared.Metric{
		{Name: "fairlead_a", Type: "gauge", Labels: []declared.Label{{Name: "state", Values: []string{"free", "held"}}, {Name: "pool"}}},
		{Name: "fairlead_b_seconds", Type: "histogram"},
	}
	for text, want := range map[string]string{
		`fairlead_a{state=~"free|held",pool="any",node="n1"}`: "",
		`fairlead_b_seconds_bucket{le="1"}`:                   "",
		`up{job="x"}`:                                         "",
		`fairlead_b_seconds`:                                  "no program has the metric fairlead_b_seconds",
		`fairlead_a_count`:                                    "no program has the metric fairlead_a_count",
		`fairlead_a{pod="web"}`:                               "fairlead_a has no label pod",
		`fairlead_a{le="1"}`:                                  "fairlead_a has no label le",
		`fairlead_a{state!="full"}`:                           `fairlead_a: the label state is never "full", only ["free" "held"]`,
	} {
		e, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := exists(metrics, e.(*parser.VectorSelector)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
