// Package datapath measures the traffic between pods beside that of plainer networks, all
// on one machine in network namespaces: TCP, small datagrams and round trips, of pods on
// one node and on two, directly and through the tunnel.
//
// The pods, the bridge, the routes, the tunnel and the packet filter are made by the
// packages with which fairlead-node makes them. No daemon runs, since none is in the path.
package datapath
