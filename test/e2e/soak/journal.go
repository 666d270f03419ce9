package soak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Entry is one fault of a run. Times count from the begin of the run.
type Entry struct {
	Fault, On string
	// Begun is the begin of the fault, Healed the end of its cause, Recovered the moment at
	// which everything was well again; zero if this has not happened.
	Begun, Healed, Recovered time.Duration
	// Note is the last reason why all was not well yet.
	Note string
}

// Journal has the faults of a run. Several goroutines may use it at once.
type Journal struct {
	mu      sync.Mutex
	entries []*Entry
}

// Begin adds a fault and returns its number.
func (j *Journal) Begin(fault, on string, at time.Duration) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, &Entry{Fault: fault, On: on, Begun: at})
	return len(j.entries) - 1
}

// Note sets the note of a fault.
func (j *Journal) Note(number int, note string) { j.change(number, func(e *Entry) { e.Note = note }) }

// Healed notes the end of a fault's cause.
func (j *Journal) Healed(number int, at time.Duration) {
	j.change(number, func(e *Entry) { e.Healed = at })
}

// Recovered notes that everything is well after a fault.
func (j *Journal) Recovered(number int, at time.Duration) {
	j.change(number, func(e *Entry) { e.Recovered = at })
}

func (j *Journal) change(number int, change func(*Entry)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(j.entries[number])
}

// Entries returns the faults so far, in the order of their begin.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for _, e := range j.entries {
		out = append(out, *e)
	}
	return out
}

// String returns the faults so far, one in each line.
func (j *Journal) String() string {
	var out strings.Builder
	for _, e := range j.Entries() {
		fmt.Fprintf(&out, "[%6.1fs] %s, %s: ", e.Begun.Seconds(), e.Fault, e.On)
		switch {
		case e.Recovered > 0:
			fmt.Fprintf(&out, "healed at %.1f s, recovered %.1f s later", e.Healed.Seconds(), (e.Recovered - e.Healed).Seconds())
		case e.Healed > 0:
			fmt.Fprintf(&out, "healed at %.1f s, not recovered", e.Healed.Seconds())
		default:
			out.WriteString("under way")
		}
		if e.Note != "" {
			fmt.Fprintf(&out, " (%s)", e.Note)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// Slowest returns the faults with the longest recoveries, the longest first.
func Slowest(entries []Entry, most int) []Entry {
	done := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Recovered == 0 })
	slices.SortStableFunc(done, func(a, b Entry) int { return cmp.Compare(b.Recovered-b.Healed, a.Recovered-a.Healed) })
	return done[:min(most, len(done))]
}

// Count is the number of times that a fault has happened, with its recoveries.
type Count struct {
	Fault   string
	Times   int
	Median  time.Duration
	Longest time.Duration
}

// Counts returns the recovered faults by name. A recovery is the time from the end of the
// cause.
func Counts(entries []Entry) []Count {
	recoveries := map[string][]time.Duration{}
	for _, e := range entries {
		if e.Recovered > 0 {
			recoveries[e.Fault] = append(recoveries[e.Fault], e.Recovered-e.Healed)
		}
	}
	var out []Count
	for _, fault := range slices.Sorted(maps.Keys(recoveries)) {
		all := slices.SortedFunc(slices.Values(recoveries[fault]), cmp.Compare)
		out = append(out, Count{Fault: fault, Times: len(all), Median: all[(len(all)-1)/2], Longest: all[len(all)-1]})
	}
	return out
}
