// Package hostnet keeps the default network's part of a node: the bridge, the tunnel and
// the routes to the blocks of every node, and says how they are in the NodeNetwork.
package hostnet
