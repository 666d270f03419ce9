// Package fabric lets the network of an OpenStack cloud carry packets of pods without an
// overlay. The port of each node gets an allowed address pair with the range of the pods,
// a security group lets these addresses in, and a router gets routes to the blocks of nodes
// that are in different subnets.
//
// Neutron has no mark for a pair or a route. So the controller writes each entry into the
// NodeNetwork before it adds it to the cloud, and removes no other entry.
package fabric
