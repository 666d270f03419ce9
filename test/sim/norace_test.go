//go:build !race

package sim

// raced is true under the race detector, which makes all this ten times slower.
const raced = false
