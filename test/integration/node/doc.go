// Package node runs the real node daemon and CNI plugin as on a node, in network namespaces of this machine and with a
// real API server.
package node
