package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/hack/metrics/declared"
)

func TestFill(t *testing.T) {
	metrics := []declared.Metric{
		{Name: "fairlead_a", Type: "gauge", Help: "A | B.", Programs: []string{"both", "one"}, Labels: []declared.Label{
			{Name: "kind", Text: "in, not_in (the other)", Values: []string{"in", "not_in"}}, {Name: "pool", Text: "the name"},
		}},
		{Name: "kubelet_b", Type: "counter", Help: "B.", Programs: []string{"one"}},
	}
	const page = "Text.\n\n<!-- metrics of one: fairlead_ -->\nold\n<!-- end of metrics -->\nMore.\n<!-- metrics of one: kubelet_ -->\n<!-- end of metrics -->\n"
	const both = "<!-- metrics of both: fairlead_ -->\n<!-- end of metrics -->\n"
	if _, err := fill(page, metrics); err == nil || !strings.Contains(err.Error(), "no table has fairlead_a of both") {
		t.Errorf("without a table: %v", err)
	}
	got, err := fill(page+both, metrics)
	if err != nil {
		t.Fatal(err)
	}
	const head = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
	const row = "| `fairlead_a` | gauge | `kind`: `in`, `not_in` (the other); `pool`: the name | A \\| B. |\n"
	const end = "\n<!-- end of metrics -->\n"
	want := "Text.\n\n<!-- metrics of one: fairlead_ -->\n" + head + row + end + "More.\n<!-- metrics of one: kubelet_ -->\n" + head +
		"| `kubelet_b` | counter |  | B. |\n" + end + "<!-- metrics of both: fairlead_ -->\n" + head + row + end
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	if again, err := fill(got, metrics); err != nil || again != got {
		t.Errorf("a second time: %v\n%s", err, cmp.Diff(got, again))
	}
}

// TestPage checks that the page is up to date, without the tools of make verify.
func TestPage(t *testing.T) {
	const root = "../.."
	metrics, err := declared.Of(root)
	if err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	want, err := fill(string(now), metrics)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(now)); diff != "" {
		t.Errorf("%s is not up to date, run hack/generate.sh (-want +is):\n%s", page, diff)
	}
}
