// Package report writes the statuses of PodAttachments, and events on pods.
package report
