package run

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRemembered(t *testing.T) {
	r := prometheus.NewRegistry()
	n := 1
	err := Remembered(r,
		func() map[string]int { return map[string]int{"marks": n} },
		func() map[string]int { return map[string]int{"blocks": 7} })
	if err != nil {
		t.Fatal(err)
	}
	n = 2
	want := `# HELP fairlead_remembered Number of things that the program remembers; it forgets those that are gone. By kind: the kind.
# TYPE fairlead_remembered gauge
fairlead_remembered{kind="blocks"} 7
fairlead_remembered{kind="marks"} 2
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
