// Package report writes what the node has done: the statuses of PodAttachments, and events
// on pods.
package report
