// Package filter maintains the node's packet filter according to the records of sandboxes
// and the NodeNetworks.
package filter
