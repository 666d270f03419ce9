// Package node is the daemon of one node. It watches the PodAttachments of its node,
// serves the CNI plugin on a unix socket, and plugs and unplugs sandboxes. It records its
// work twice: first in a file on this machine, then in the status of the PodAttachment.
//
// A sandbox has a record before it has links. A daemon that was killed at any moment
// therefore finds in its records everything that it has to undo or to adopt, and needs no
// API for it.
//
// The controller gives addresses to other pods on the evidence of the status. The status
// is computed from the records alone (ledger.Change). The daemon writes Detached only
// for a PodAttachment that is being deleted and has nothing left in the kernel. No ADD
// gets that PodAttachment afterwards, so Detached is final.
package node
