package main

import (
	"fmt"
	"slices"
	"time"
)

// samples are times or rates of one thing.
type samples []float64

// addTime adds a time, in milliseconds.
func (s *samples) addTime(d time.Duration) { *s = append(*s, ms(d)) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile p, 0 to 100; 0 of no samples.
func (s samples) percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(p/100*float64(len(s))), len(s)-1)]
}

func (s samples) median() float64 { return s.percentile(50) }

// overall is the rate of several batches of one size, of which s has the rates:
// what all did divided by the time of all.
func (s samples) overall() float64 {
	var seconds float64
	for _, rate := range s {
		seconds += 1 / rate
	}
	return float64(len(s)) / seconds
}

// inTurns runs all once, beginning with another one each round: none is always
// the one that finds the machine as its neighbour left it.
func inTurns(round int, all ...func() error) error {
	for i := range all {
		if err := all[(round+i)%len(all)](); err != nil {
			return err
		}
	}
	return nil
}

// firstOf is the first error and how many there are: all of a batch usually
// fail alike.
func firstOf(errs []error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if n++; first == nil {
			first = err
		}
	}
	if n > 1 {
		return fmt.Errorf("%d of %d failed, the first: %w", n, len(errs), first)
	}
	return first
}
