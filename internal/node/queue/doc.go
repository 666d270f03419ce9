// Package queue works off queues of which an item that fails delays itself alone.
package queue
