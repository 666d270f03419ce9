// Package plugin chooses the network plugin of a node by name, and calls it to plug and
// unplug sandboxes, as the kubelet's plugin manager did.
package plugin
