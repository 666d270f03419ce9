// Package node is the daemon of one node. It watches the PodAttachments of its
// node, serves the CNI plugin on a unix socket, plugs and unplugs sandboxes,
// and writes down what it did: first in a record on this machine, then in the
// status of the PodAttachment.
//
// The record comes before the deed. A link of ours exists only while there is
// a record of its sandbox, so a daemon that was killed at any moment finds, in
// its records, everything it has to undo or to adopt, and needs no API for it.
//
// The status is the evidence on which the controller gives addresses to
// others. It is computed from the records alone (ledger.Verdict). Detached is
// said only of a PodAttachment that is being deleted, when nothing of it is left
// in the kernel, and no ADD gets it after that: the word is final.
package node
