// Package ledger keeps the node's records of its sandboxes, on tmpfs and in memory, and
// derives from them the status of each PodAttachment.
package ledger
