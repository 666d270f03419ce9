// Package node tests the node daemon and the CNI plugin as they run on a node: the real programs, in network namespaces
// of this machine, with a real API server.
package node
