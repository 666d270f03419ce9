//go:build race

package controller

// raced is true under the race detector, which the controllers then have too.
const raced = true
