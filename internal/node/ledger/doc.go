// Package ledger keeps what this node knows of its sandboxes: the records, on tmpfs and
// in memory, and what is to be said of each PodAttachment because of them.
package ledger
