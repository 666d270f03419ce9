//go:build !linux

package run

// Slacken does nothing: timer slack exists on Linux only.
func Slacken() {}
