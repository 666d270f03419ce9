package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestPercentile(t *testing.T) {
	tests := []struct {
		name    string
		samples samples
		p, want float64
	}{
		{"none", nil, 50, 0},
		{"one", samples{7}, 99, 7},
		{"unsorted", samples{3, 1, 2}, 50, 2},
		{"the last", samples{1, 2, 3, 4}, 100, 4},
		{"99 of 200", append(make(samples, 197), 1, 2, 3), 99, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.samples.percentile(tt.p); got != tt.want {
				t.Errorf("percentile %v: %v, want %v", tt.p, got, tt.want)
			}
		})
	}
}

// 1,000 in one second and 1,000 in four are 2,000 in five.
func TestOverall(t *testing.T) {
	if got := (samples{1000, 250}).overall(); got != 400 {
		t.Errorf("overall() = %v, want 400", got)
	}
}

// Figures that are measured only in some rounds are warmed up, too.
func TestWarmUpIsForgotten(t *testing.T) {
	var d durations
	err := d.afterWarmUp(4, 8, func(round int) error {
		d.ourAdd = append(d.ourAdd, float64(round))
		if round%4 == 0 {
			d.masqRefAdd = append(d.masqRefAdd, float64(round))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := durations{ourAdd: samples{4, 5, 6, 7, 8, 9, 10, 11}, masqRefAdd: samples{4, 8}}
	if diff := cmp.Diff(want, d, cmp.AllowUnexported(durations{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := d.afterWarmUp(1, 1, func(int) error { return errors.New("broken") }); err == nil || err.Error() != "round 0: broken" {
		t.Errorf("afterWarmUp() = %v, want that of its first round", err)
	}
}

func TestResults(t *testing.T) {
	atMost := object{name: "a", unit: "ms", target: "ratio <= 2", met: ratioAtMost(2)}
	faster := object{name: "b", unit: "ms", inverse: true, target: "ratio >= 3", met: ratioAtLeast(3)}
	tests := []struct {
		name   string
		object object
		figure figure
		want   string
	}{
		{"met", atMost, figure{3, 2}, "a 3 ms, baseline 2, ratio 1.5 (target: ratio <= 2: met)"},
		{"missed", atMost, figure{5, 2}, "a 5 ms, baseline 2, ratio 2.5 (target: ratio <= 2: MISSED)"},
		{"times faster", faster, figure{2, 6.66666}, "b 2 ms, baseline 6.667, ratio 3.333 (target: ratio >= 3: met)"},
		{"no baseline", object{name: "c", unit: "calls", target: "value = 0", met: valueAtMost(0)}, figure{0, 0}, "c 0 calls, baseline 0, ratio 0 (target: value = 0: met)"},
		{"no target", object{name: "d", unit: "ms"}, figure{1, 2}, "d 1 ms, baseline 2, ratio 0.5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.object.result(tt.figure).String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWriteResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench", "results.json")
	if err := writeResults(path, []result{object{name: "a", unit: "ms"}.result(figure{1, 2})}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{"name": "a", "value": 1.0, "unit": "ms", "baseline": 2.0, "ratio": 0.5}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestNamesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/dev/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range names() {
		if seen[name] {
			t.Errorf("%s is measured twice", name)
		}
		seen[name] = true
		// One row has both percentiles of the same thing.
		first := strings.TrimSuffix(name, "_p99")
		if first != name {
			first += "_p50"
		}
		if !bytes.Contains(page, []byte("`"+first+"`")) {
			t.Errorf("%s is not in docs/dev/benchmarks.md", name)
		}
	}
}

func TestResourceOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/pods":                                                     "pods",
		"/api/v1/namespaces/bench/pods/web":                                "pods",
		"/api/v1/namespaces/bench":                                         "namespaces",
		"/apis/fairlead.dev/v1alpha1/ipblocks":                             "ipblocks",
		"/apis/fairlead.dev/v1alpha1/ippools/default/status":               "ippools/status",
		"/apis/fairlead.dev/v1alpha1/namespaces/b/podattachments/a/status": "podattachments/status",
		"/version": "/version",
	} {
		if got := resourceOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestShortFormLeavesOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan plan
		m    measurement
		want bool
	}{
		{"all are wanted", plan{}, measurement{full: true}, true},
		{"the short form", plan{Short: true}, measurement{full: true}, false},
		{"the short form makes it", plan{Short: true}, measurement{}, true},
		{"another is wanted", plan{Only: []string{"other"}}, measurement{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.plan.makes(tt.m); got != tt.want {
				t.Errorf("made: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDeploy30Figures(t *testing.T) {
	const printed = `[ 29.3s] --- 30 pods until Ready, beside the same with hostNetwork
[ 46.2s]   the pods and their records to go: 29 pods and 22 records are left
[ 86.2s]   turn 1 of 1: 8.39 s, with hostNetwork 5.38 s
[113.5s]   processor time of containerd: 1.03 s, with hostNetwork 0.79 s
deploy30: OK seconds=8.284 hostnetwork=5.429 processor=6.5 processor-hostnetwork=5 turns=1
`
	var said []string
	got, err := deploy30Figures(strings.NewReader(printed), func(line string) { said = append(said, line) })
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]figure{"deploy30_vs_hostnetwork": {8.284, 5.429}, "deploy30_processor_s": {6.5, 5}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(figure{})); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
	wantSaid := []string{"turn 1 of 1: 8.39 s, with hostNetwork 5.38 s", "processor time of containerd: 1.03 s, with hostNetwork 0.79 s"}
	if diff := cmp.Diff(wantSaid, said); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if _, err := deploy30Figures(strings.NewReader("deploy30: OK seconds=8\n"), func(string) {}); err == nil {
		t.Error("half a line is no error")
	}
}

// The node has plugged an interface only in a generation of the spec that is newer than the
// one before the change.
func TestFollows(t *testing.T) {
	record := func(generation int64, links ...string) *v1alpha1.PodAttachment {
		s := &v1alpha1.Sandbox{Generation: generation}
		for _, name := range links {
			s.Links = append(s.Links, v1alpha1.SandboxLink{Name: name})
		}
		return &v1alpha1.PodAttachment{Status: v1alpha1.PodAttachmentStatus{Sandbox: s}}
	}
	for _, tt := range []struct {
		name    string
		record  *v1alpha1.PodAttachment
		plugged bool
		want    bool
	}{
		{"plugged", record(4, "eth0", "net1"), true, true},
		{"not yet", record(4, "eth0"), true, false},
		{"of the generation before", record(3, "eth0", "net1"), true, false},
		{"unplugged", record(4, "eth0"), false, true},
		{"still there", record(4, "eth0", "net1"), false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := isPlugged(tt.record, 3, tt.plugged); got != tt.want {
				t.Errorf("isPlugged: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFirstOf(t *testing.T) {
	first := errors.New("first")
	err := firstOf([]error{nil, first, errors.New("second")})
	if !errors.Is(err, first) || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("got %v", err)
	}
	if err := firstOf(make([]error, 3)); err != nil {
		t.Errorf("of no errors: %v", err)
	}
}

func TestBadCommandLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown figure", []string{"--only", "add_ready,add_redy"}, `"add_redy"`},
		{"an argument", []string{"short"}, `"short"`},
		{"an unknown flag", []string{"--shor"}, "-shor"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var said bytes.Buffer
			if code := launch(tt.args, &said, &said); code != 2 || !strings.Contains(said.String(), tt.want) {
				t.Errorf("exit code %d, %q; want 2 and %q", code, said.String(), tt.want)
			}
		})
	}
}
