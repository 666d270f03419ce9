// Package soak has the pure parts of the soak of the end-to-end test: the order of the
// faults, the journal of the run, the figures that programs serve as metrics, and the
// report. It starts nothing and reads no clock.
package soak

import (
	"math/rand/v2"
	"slices"
)

// Deck deals faults in a random order. Each fault is dealt once before any is dealt again,
// so that a short run has as many different faults as it has time for.
type Deck struct {
	random *rand.Rand
	faults []string
	left   []string
}

// NewDeck returns a deck. The same source of random numbers gives the same order.
func NewDeck(random *rand.Rand, faults ...string) *Deck {
	return &Deck{random: random, faults: faults}
}

// Next returns the next fault.
func (d *Deck) Next() string {
	if len(d.left) == 0 {
		d.left = slices.Clone(d.faults)
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	next := d.left[0]
	d.left = d.left[1:]
	return next
}
