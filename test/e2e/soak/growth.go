package soak

import "fmt"

// Reading is the size of a program's process at rest, after a phase.
type Reading struct {
	Phase   int
	Program string
	// Memory is the resident memory in MB.
	Memory     float64
	Goroutines float64
}

// The bounds of a program of two nodes at rest. They are far above the measured sizes, and
// far below those of a leak that matters.
const (
	maxMemory     = 250 // MB
	maxGoroutines = 1500
	// A value grows steadily if it is larger after each of the last steadyPhases phases than
	// after the phase before, and by more than steadyFactor in all.
	steadyPhases = 5
	steadyFactor = 1.5
)

// Growing returns the programs that are too large, or grow with each phase.
func Growing(readings []Reading) (problems []string) {
	series := map[string][]float64{}
	add := func(what string, value, most float64, phase int) {
		series[what] = append(series[what], value)
		if value > most {
			problems = append(problems, fmt.Sprintf("%s is %.0f after phase %d; at most %.0f is normal", what, value, phase, most))
		} else if steady(series[what]) {
			problems = append(problems, fmt.Sprintf("%s grows with each phase: %.0f", what, series[what]))
		}
	}
	for _, r := range readings {
		add("memory (MB) of "+r.Program, r.Memory, maxMemory, r.Phase)
		add("number of goroutines of "+r.Program, r.Goroutines, maxGoroutines, r.Phase)
	}
	return problems
}

func steady(values []float64) bool {
	if len(values) <= steadyPhases {
		return false
	}
	last := values[len(values)-steadyPhases-1:]
	for i := range steadyPhases {
		if last[i+1] <= last[i] {
			return false
		}
	}
	return last[steadyPhases] > steadyFactor*last[0]
}
