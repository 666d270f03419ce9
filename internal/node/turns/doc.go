// Package turns decides what may happen to the sandboxes of this node at the same time.
package turns
