// Package locks decides which operations on the sandboxes of this node may run at the
// same time.
package locks
