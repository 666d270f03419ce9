package scrape

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/hack/metrics/declared"
)

func TestUndeclared(t *testing.T) {
	metrics := []declared.Metric{
		{Name: "fairlead_a", Type: "gauge", Programs: []string{"one"}, Labels: []declared.Label{{Name: "state", Values: []string{"free"}}, {Name: "pool"}}},
		{Name: "fairlead_b_seconds", Type: "histogram", Programs: []string{"one", "two"}},
	}
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"well": {text: "# TYPE fairlead_a gauge\nfairlead_a{pool=\"x\",state=\"free\"} 1\nfairlead_b_seconds_bucket{le=\"1\"} 1\nfairlead_b_seconds_sum 1\ngo_threads 3\n"},
		"wrong": {
			text: "fairlead_a{pool=\"x\",state=\"full\"} 1\nfairlead_a{node=\"x\"} 1\nfairlead_a_sum 1\nfairlead_c 1\n",
			want: []string{
				`fairlead_a: the label state is "full", its help lists free`, "fairlead_a has the label node, which is not declared",
				"fairlead_a_sum is not declared as a metric of one", "fairlead_c is not declared as a metric of one",
			},
		},
		"nothing": {text: "go_threads 3\n", want: []string{"one serves no metric of ours"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, undeclared(metrics, "one", []byte(test.text))); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	if got := undeclared(metrics, "two", []byte("fairlead_a 1\n")); len(got) != 1 {
		t.Errorf("a metric of another program: %q", got)
	}
}
