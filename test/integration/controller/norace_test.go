//go:build !race

package controller

// raced is true if the tests run with the race detector. Then the controllers are built with
// it, too.
const raced = false
