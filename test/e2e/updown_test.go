package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

func TestLosses(t *testing.T) {
	const came, not = true, false
	for _, tt := range []struct {
		name            string
		back            []bool
		lost, row, from int
	}{
		{"none sent", nil, 0, 0, 0},
		{"none lost", []bool{came, came}, 0, 0, 0},
		{"single ones", []bool{not, came, not, came, not}, 3, 1, 0},
		{"a row", []bool{not, came, not, not, came}, 3, 2, 2},
		{"the last", []bool{came, not, not, not}, 3, 3, 1},
	} {
		lost, row, from := losses(tt.back)
		if diff := cmp.Diff([]int{tt.lost, tt.row, tt.from}, []int{lost, row, from}); diff != "" {
			t.Errorf("%s: lost, row and first of it (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestTooManyLosses(t *testing.T) {
	some := func(sent int, lost ...int) []bool {
		back := slices.Repeat([]bool{true}, sent)
		for _, n := range lost {
			back[n] = false
		}
		return back
	}
	half := some(1000)
	for i := 0; i < len(half); i += 2 {
		half[i] = false
	}
	for _, tt := range []struct {
		name string
		back []bool
		want string // in the error; empty for none
	}{
		{"none sent", nil, "no packet was sent"},
		{"none lost", some(50), ""},
		{"one of a hundred", some(100, 7), ""},
		{"two of a hundred", some(100, 7, 9), "2 of 100 packets were lost"},
		{"every second", half, "500 of 1000 packets were lost"},
		{"a row", some(1000, 7, 8), "2 packets in a row were lost from a to b, from number 7 of 1000"},
	} {
		err := (&stream{name: "from a to b", back: tt.back}).tooMany()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestDifferences(t *testing.T) {
	got := differences(map[string]bool{"Pod a": true, "Pod b": true}, map[string]bool{"Pod b": true, "Secret c": true, "Job d": true})
	if diff := cmp.Diff([]string{"new: Job d", "new: Secret c", "gone: Pod a"}, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

// TestRuntimeFailures checks that only failures after the start of the test count.
func TestRuntimeFailures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	early := "failed to setup network for sandbox \"1\"\n"
	late := "level=error msg=\"RunPodSandbox: failed to setup network for sandbox 2\"\nlevel=info msg=\"CreateContainer\"\n"
	if err := os.WriteFile(file, []byte(early+late), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &node{name: "node-1", running: map[string]*harness.Process{containerRuntime: {Log: file}}}
	w := &testbed{Cluster: &lab.Cluster{}, nodes: []*node{n}}
	all, err := w.runtimeLogs()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.runtimeFailures(all); err != nil {
		t.Errorf("failures after the end of the log: %v; want none", err)
	}
	all[n] = int64(len(early))
	if err := w.runtimeFailures(all); err == nil || strings.Contains(err.Error(), `"1"`) || !strings.Contains(err.Error(), "sandbox 2") {
		t.Errorf("failures: %v; want that of sandbox 2 alone", err)
	}
}
