// Package network is what the kubelet's network plugin manager was: it knows
// plugins by name, has one of them plug and unplug the sandboxes of this node,
// and decides what may happen at the same time.
package network
