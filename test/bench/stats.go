package main

import (
	"fmt"
	"slices"
	"time"
)

// samples are times or rates of one measurement.
type samples []float64

// addTime adds a time, in milliseconds.
func (s *samples) addTime(d time.Duration) { *s = append(*s, ms(d)) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile returns the percentile p, 0 to 100; 0 if there are no samples.
func (s samples) percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(p/100*float64(len(s))), len(s)-1)]
}

func (s samples) median() float64 { return s.percentile(50) }

// overall returns the rate of several batches of one size with the rates in s: their
// total number divided by their total time.
func (s samples) overall() float64 {
	var seconds float64
	for _, rate := range s {
		seconds += 1 / rate
	}
	return float64(len(s)) / seconds
}

// inTurns runs all once, beginning with another one each round, so that none always runs
// in the state that the same neighbour left.
func inTurns(round int, all ...func() error) error {
	for i := range all {
		if err := all[(round+i)%len(all)](); err != nil {
			return err
		}
	}
	return nil
}

// firstOf returns the first error and the number of errors: all of a batch usually fail
// alike.
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
