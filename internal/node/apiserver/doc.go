// Package apiserver is the node's connection to the API server. It reads and watches the
// PodAttachments of the node and every NodeNetwork, and writes statuses and events.
package apiserver
