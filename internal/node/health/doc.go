// Package health reports whether the daemon can serve pods, and whether a restart may help.
package health
