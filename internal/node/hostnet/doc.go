// Package hostnet maintains the default network of a node: the bridge, the tunnel and
// the routes to the blocks of every node. It reports their state in the NodeNetwork.
package hostnet
