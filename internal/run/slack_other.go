//go:build !linux

package run

// Slacken does nothing: it is for Linux.
func Slacken() {}
