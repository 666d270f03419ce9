// Package background works on the sandboxes of the node beside the requests of the runtime: it
// adopts those of the previous daemon, sweeps, removes and repairs, and has one queue for it.
package background
