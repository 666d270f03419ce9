package soak

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Run is the outcome of a soak.
type Run struct {
	Seed     uint64
	Took     time.Duration
	Failure  string // empty for a success
	Entries  []Entry
	Skipped  []string // faults that this machine does not allow, with the reason
	Pods     int      // that were made
	Phases   []Phase
	Readings []Reading
	ADD, DEL Histogram
	// Codes are the numbers of answered ADD and DEL requests by CNI error code, 0 for
	// success.
	Codes map[string]float64
	// Refused are the kubelets' events about sandboxes that could not be made, by cause.
	Refused map[string]int
	// Restarts are the unasked ends of programs that are not Fairlead's, by name.
	Restarts map[string]int
	Audit    string
}

// Phase is the rest after one phase.
type Phase struct {
	Number int
	// Rest is how long it took until everything was true.
	Rest    time.Duration
	Running int // pods
}

// Markdown returns the report.
func (r Run) Markdown() string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	result := "OK"
	if r.Failure != "" {
		result = "FAILED"
	}
	line("%s: %s, seed %d, %d faults, %d pods, %d phases\n", result, r.Took.Round(time.Second), r.Seed, len(r.Entries), r.Pods, len(r.Phases))
	if r.Failure != "" {
		line("```\n%s\n```\n", r.Failure)
	}
	line("| fault | times | median recovery | longest |\n|---|---|---|---|")
	for _, c := range Counts(r.Entries) {
		line("| %s | %d | %s | %s |", c.Fault, c.Times, seconds(c.Median), seconds(c.Longest))
	}
	for _, s := range r.Skipped {
		line("\nNot done: %s.", s)
	}
	line("\n| slowest recoveries | begun | took | waited for, at last |\n|---|---|---|---|")
	for _, e := range Slowest(r.Entries, slowest) {
		line("| %s, %s | %s | %s | %s |", e.Fault, e.On, seconds(e.Begun), seconds(e.Recovered-e.Healed), cell(e.Note))
	}
	line("\n| phase | running pods | rest after | largest memory, MB | most goroutines |\n|---|---|---|---|---|")
	for _, p := range r.Phases {
		memory, goroutines := r.largest(p.Number)
		line("| %d | %d | %s | %s | %s |", p.Number, p.Running, seconds(p.Rest), memory, goroutines)
	}
	line("\n| verb | requests | half within | 95 %% | 99 %% |\n|---|---|---|---|---|")
	for _, h := range []struct {
		verb string
		of   Histogram
	}{{"ADD", r.ADD}, {"DEL", r.DEL}} {
		line("| %s | %.0f | %s | %s | %s |", h.verb, h.of.Count(), bound(h.of.Quantile(0.5)), bound(h.of.Quantile(0.95)), bound(h.of.Quantile(0.99)))
	}
	line("\n| seen | times |\n|---|---|")
	for _, code := range slices.Sorted(maps.Keys(r.Codes)) {
		line("| answer of ADD or DEL with code %s | %.0f |", code, r.Codes[code])
	}
	for _, of := range []struct {
		what   string
		counts map[string]int
	}{{"sandbox refused: ", r.Refused}, {"unasked end of ", r.Restarts}} {
		for _, cause := range slices.Sorted(maps.Keys(of.counts)) {
			line("| %s%s | %d |", of.what, cell(cause), of.counts[cause])
		}
	}
	if r.Audit != "" {
		line("\nThe audit at the end: `%s`", r.Audit)
	}
	return out.String()
}

// largest returns the largest memory and the most goroutines after a phase, each with the
// program.
func (r Run) largest(phase int) (memory, goroutines string) {
	here := slices.DeleteFunc(slices.Clone(r.Readings), func(o Reading) bool { return o.Phase != phase })
	if len(here) == 0 {
		return "", ""
	}
	m := slices.MaxFunc(here, func(a, b Reading) int { return cmp.Compare(a.Memory, b.Memory) })
	g := slices.MaxFunc(here, func(a, b Reading) int { return cmp.Compare(a.Goroutines, b.Goroutines) })
	return fmt.Sprintf("%.0f (%s)", m.Memory, m.Program), fmt.Sprintf("%.0f (%s)", g.Goroutines, g.Program)
}

// slowest is how many of the slowest recoveries the report lists.
const slowest = 8

// cell returns a text for a cell of a table.
func cell(text string) string {
	const longest = 160
	text = strings.NewReplacer("|", "\\|", "\n", " ").Replace(text)
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return text
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// bound returns the upper bound of a bucket in words.
func bound(s float64) string {
	switch {
	case math.IsInf(s, 1):
		return "more"
	case s < 1:
		return fmt.Sprintf("%g ms", math.Round(s*1e6)/1e3)
	default:
		return fmt.Sprintf("%g s", s)
	}
}
