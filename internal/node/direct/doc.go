// Package direct finds out whether the network between nodes delivers packets of pods that
// are not encapsulated.
//
// A cloud may drop every packet whose source is not an address of the machine (port
// security). Such a node reaches other nodes, and its pods reach none. The detector sends
// two echo requests to a few nodes of the same link, one from the node's own address and
// one from an address of its pods. Packets are dropped if only the first is answered.
package direct
