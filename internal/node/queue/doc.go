// Package queue works off queues; an item that fails delays itself alone.
package queue
