// Package apiserver is the API server as one node sees it: it reads and watches the
// PodAttachments of the node and every NodeNetwork, and writes statuses and events.
package apiserver
