// Package queue processes the items of work queues. A failed item delays only itself.
package queue
