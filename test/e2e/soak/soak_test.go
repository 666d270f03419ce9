package soak

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestDeckDealsEachBeforeAnyAgain(t *testing.T) {
	faults := []string{"a", "b", "c", "d", "e"}
	deal := func(seed uint64) (out []string) {
		d := NewDeck(rand.New(rand.NewPCG(seed, 0)), faults...)
		for range 3 * len(faults) {
			out = append(out, d.Next())
		}
		return out
	}
	orders := map[string]bool{}
	for seed := range uint64(20) {
		dealt := deal(seed)
		for round := range slices.Chunk(dealt, len(faults)) {
			if diff := cmp.Diff(faults, slices.Sorted(slices.Values(round))); diff != "" {
				t.Errorf("seed %d: a round (-want +got):\n%s", seed, diff)
			}
		}
		if diff := cmp.Diff(dealt, deal(seed)); diff != "" {
			t.Errorf("seed %d again (-first +second):\n%s", seed, diff)
		}
		orders[strings.Join(dealt, "")] = true
	}
	if len(orders) < 15 {
		t.Errorf("20 seeds give %d orders", len(orders))
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e"}, faults); diff != "" {
		t.Errorf("the caller's list has changed:\n%s", diff)
	}
}

func TestJournal(t *testing.T) {
	var j Journal
	first := j.Begin("kill", "node-1", time.Second)
	second := j.Begin("outage", "control plane", 2*time.Second)
	j.Healed(first, 3*time.Second)
	j.Recovered(first, 5*time.Second)
	j.Healed(second, 4*time.Second)
	j.Begin("kill", "node-2", 6*time.Second)
	want := "[   1.0s] kill, node-1: healed at 3.0 s, recovered 2.0 s later\n" +
		"[   2.0s] outage, control plane: healed at 4.0 s, not recovered\n" +
		"[   6.0s] kill, node-2: under way\n"
	if diff := cmp.Diff(want, j.String()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	third := j.Begin("kill", "node-1", 7*time.Second)
	j.Healed(third, 8*time.Second)
	j.Recovered(third, 18*time.Second)
	// A fault without a recovery has no time, and is not counted.
	counts := []Count{{Fault: "kill", Times: 2, Median: 2 * time.Second, Longest: 10 * time.Second}}
	if diff := cmp.Diff(counts, Counts(j.Entries())); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	var slow []time.Duration
	for _, e := range Slowest(j.Entries(), 9) {
		slow = append(slow, e.Recovered-e.Healed)
	}
	if diff := cmp.Diff([]time.Duration{10 * time.Second, 2 * time.Second}, slow); diff != "" {
		t.Errorf("slowest (-want +got):\n%s", diff)
	}
}

const served = `# HELP process_start_time_seconds Start time.
# TYPE process_start_time_seconds gauge
process_start_time_seconds START
# TYPE requests_total counter
requests_total{verb="ADD",code="0"} 5
requests_total{verb="ADD",code="11"} 2
requests_total{verb="DEL",code="0"} 7
# TYPE duration_seconds histogram
duration_seconds_bucket{verb="ADD",le="0.01"} 3
duration_seconds_bucket{verb="ADD",le="0.1"} 9
duration_seconds_bucket{verb="ADD",le="+Inf"} 10
duration_seconds_sum{verb="ADD"} 1
duration_seconds_count{verb="ADD"} 10
`

func parse(t *testing.T, start string) Scrape {
	t.Helper()
	s, err := ParseScrape(strings.Replace(served, "START", start, 1))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTotals adds up two processes of a program. A later scrape of one process replaces the
// earlier, which it includes.
func TestTotals(t *testing.T) {
	var totals Totals
	totals.Add("node-1", parse(t, "1.7e9"))
	totals.Add("node-1", parse(t, "1.7e9"))
	totals.Add("node-1", parse(t, "1.8e9"))
	totals.Add("node-2", parse(t, "1.8e9"))
	if got := totals.Processes(); got != 3 {
		t.Errorf("%d processes; want 3", got)
	}
	if got := totals.Value("requests_total", "verb", "ADD"); got != 21 {
		t.Errorf("ADDs: %v; want 21", got)
	}
	if diff := cmp.Diff(map[string]float64{"0": 15, "11": 6}, totals.Counts("requests_total", "code", "verb", "ADD")); diff != "" {
		t.Errorf("ADDs by code (-want +got):\n%s", diff)
	}
	want := Histogram{0.01: 9, 0.1: 27, math.Inf(1): 30}
	if diff := cmp.Diff(want, totals.Histogram("duration_seconds", "verb", "ADD")); diff != "" {
		t.Errorf("histogram (-want +got):\n%s", diff)
	}
	if _, err := ParseScrape("no metrics {"); err == nil {
		t.Error("a text without metrics gives no error")
	}
}

func TestQuantile(t *testing.T) {
	h := Histogram{0.01: 3, 0.1: 9, math.Inf(1): 10}
	for q, want := range map[float64]float64{0.3: 0.01, 0.5: 0.1, 0.9: 0.1, 0.95: math.Inf(1)} {
		if got := h.Quantile(q); got != want {
			t.Errorf("quantile %v is %v; want %v", q, got, want)
		}
	}
	if got := (Histogram{}).Quantile(0.5); got != 0 {
		t.Errorf("without observations: %v; want 0", got)
	}
}

func TestGrowing(t *testing.T) {
	series := func(memory ...float64) (out []Reading) {
		for i, m := range memory {
			out = append(out, Reading{Phase: i + 1, Program: "daemon", Memory: m, Goroutines: 60})
		}
		return out
	}
	for _, tt := range []struct {
		name     string
		readings []Reading
		want     string
	}{
		{"constant", series(30, 30, 30, 30, 30, 30, 30), ""},
		{"up and down", series(30, 40, 35, 45, 40, 50, 45), ""},
		{"a little more each time", series(30, 31, 32, 33, 34, 35), ""},
		{"few phases", series(30, 40, 50, 60, 70), ""},
		{"steadily", series(30, 40, 50, 60, 70, 80), "memory (MB) of daemon grows with each phase: [30 40 50 60 70 80]"},
		{"steadily after a while", series(40, 30, 40, 50, 60, 70, 80), "memory (MB) of daemon grows with each phase: [40 30 40 50 60 70 80]"},
		{"at once", series(30, 300), "memory (MB) of daemon is 300 after phase 2; at most 250 is normal"},
		{
			"goroutines",
			[]Reading{{Phase: 1, Program: "daemon", Memory: 30, Goroutines: 2000}},
			"number of goroutines of daemon is 2000 after phase 1; at most 1500 is normal",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.Join(Growing(tt.readings), "; "); got != tt.want {
				t.Errorf("Growing: %q; want %q", got, tt.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	run := Run{
		Seed: 7, Took: time.Hour, Pods: 100,
		Entries:  []Entry{{Fault: "kill", On: "node-1", Note: "no | pod", Begun: 1, Healed: 2 * time.Second, Recovered: 3 * time.Second}},
		Phases:   []Phase{{Number: 1, Rest: 4 * time.Second, Running: 9}},
		Readings: []Reading{{Phase: 1, Program: "a", Memory: 30, Goroutines: 70}, {Phase: 1, Program: "b", Memory: 50, Goroutines: 60}},
		ADD:      Histogram{0.0025: 10, math.Inf(1): 10}, DEL: Histogram{0.1: 1, math.Inf(1): 2},
		Codes: map[string]float64{"0": 11, "11": 1}, Refused: map[string]int{"no | network": 2}, Restarts: map[string]int{"kubelet": 1},
		Audit: "OK",
	}
	want := `OK: 1h0m0s, seed 7, 1 faults, 100 pods, 1 phases

| fault | times | median recovery | longest |
|---|---|---|---|
| kill | 1 | 1.0 s | 1.0 s |

| slowest recoveries | begun | took | waited for, at last |
|---|---|---|---|
| kill, node-1 | 0.0 s | 1.0 s | no \| pod |

| phase | running pods | rest after | largest memory, MB | most goroutines |
|---|---|---|---|---|
| 1 | 9 | 4.0 s | 50 (b) | 70 (a) |

| verb | requests | half within | 95 % | 99 % |
|---|---|---|---|---|
| ADD | 10 | 2.5 ms | 2.5 ms | 2.5 ms |
| DEL | 2 | 100 ms | more | more |

| seen | times |
|---|---|
| answer of ADD or DEL with code 0 | 11 |
| answer of ADD or DEL with code 11 | 1 |
| sandbox refused: no \| network | 2 |
| unasked end of kubelet | 1 |

The audit at the end: ` + "`OK`\n"
	if diff := cmp.Diff(want, run.Markdown()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	run.Failure = "no luck"
	if got := run.Markdown(); !strings.HasPrefix(got, "FAILED: 1h0m0s, seed 7") || !strings.Contains(got, "```\nno luck\n```") {
		t.Errorf("report of a failure:\n%s", got)
	}
}

func TestPeers(t *testing.T) {
	attachment := func(name string, interfaces ...v1alpha1.Interface) v1alpha1.PodAttachment {
		return v1alpha1.PodAttachment{Spec: v1alpha1.PodAttachmentSpec{PodName: name, PodUID: types.UID("uid-" + name), Interfaces: interfaces}}
	}
	of := func(network string, addresses ...string) v1alpha1.Interface {
		return v1alpha1.Interface{Network: network, Addresses: addresses, Default: network == "default"}
	}
	got := Peers([]v1alpha1.PodAttachment{
		attachment("a", of("default", "10.0.0.1/24"), of("apps", "10.1.0.1/24"), of("logs", "10.2.0.1/24")),
		attachment("b", of("default", "10.0.0.2/24"), of("apps", "10.1.0.2/24", "fd00::2/64")),
		attachment("c", of("default", "10.0.0.3/24"), of("logs", "10.2.0.3/24"), of("foreign")),
		attachment("d", of("default", "10.0.0.4/24"), of("foreign")),
	}, 80)
	want := map[types.UID]map[string]string{
		"uid-a": {"10.1.0.2:80": "b", "[fd00::2]:80": "b", "10.2.0.3:80": "c"},
		"uid-b": {"10.1.0.1:80": "a"},
		"uid-c": {"10.2.0.1:80": "a"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}
