// Package plugin knows the network plugins of a node by name, and has one of them plug
// and unplug sandboxes, as the kubelet's plugin manager did.
package plugin
