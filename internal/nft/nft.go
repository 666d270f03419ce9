// Package nft keeps the node's packet filter: the addresses that pods leave the
// cluster with, the ports of the host that lead to pods, and that no pod sends
// as another. It is the only importer of knftables, which runs the program nft.
//
// Everything is in two tables that are Fairlead's alone, "inet fairlead" and
// "bridge fairlead". Pure functions turn what is wanted into elements of sets
// and maps; a Keeper brings them into the kernel, many pods with one transaction,
// and puts them back when somebody takes them away.
package nft

import (
	"net"
	"net/netip"
)

// Table is the name of both tables, of the families inet and bridge.
const Table = "fairlead"

// Node is what the rules need to know of the node.
type Node struct {
	// Bridge that the pods are plugged into.
	Bridge string
	// LinkGroup is the group (ip-link(8)) of the links of pods. A link of this
	// group sends nothing until its Pod is known.
	LinkGroup uint32
	// Masquerade has what pods send out of the cluster carry an address of the
	// node.
	Masquerade bool
	// Local are the blocks of this node's pods.
	Local []netip.Prefix
	// Cluster is what pods reach with their own addresses: every node's blocks
	// and addresses, and what the operator excludes.
	Cluster []netip.Prefix
	// Tunnel tells which packets are the tunnel's.
	Tunnel Tunnel
	// Underlay are this node's addresses that the tunnel is at, none where the node
	// takes nothing encapsulated.
	Underlay []netip.Addr
	// Peers are the addresses of the other nodes: the tunnel's packets come from
	// these, and no pod sends such a packet to these.
	Peers []netip.Addr
}

// Tunnel is what makes a UDP datagram one of the tunnel between nodes (VXLAN, RFC
// 7348). Datagrams to that port with another number are somebody else's.
type Tunnel struct {
	// Port is the UDP port, 1 to 65535, VNI the network's number, 1 to 16777215.
	Port, VNI int
}

// Pod is what the rules need to know of one sandbox.
type Pod struct {
	// Links are its links on the host.
	Links []Link
	// Addresses are where its ports are reached, one of a family at most.
	Addresses []netip.Addr
	// Ports of the host that lead to it.
	Ports []Port
}

// Link is the host end of an interface, and who may send through it.
type Link struct {
	Name string
	// MAC and Addresses are what the pod may send as. The link-local IPv6 address
	// that the kernel makes of the MAC (RFC 4291, appendix A) belongs to them.
	MAC       net.HardwareAddr
	Addresses []netip.Addr
	// Unchecked links may send as anybody: it is not known any more who they are.
	Unchecked bool
}

// Port is one port of the host.
type Port struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string `json:"protocol"`
	// HostIP is the one address of the host that it is at; an unspecified one is
	// every address of its family, one that is not valid is every address.
	HostIP        netip.Addr `json:"hostIP,omitzero"`
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
}

// Overlaps tells whether two ports cannot be there at once.
func (p Port) Overlaps(q Port) bool {
	if p.Protocol != q.Protocol || p.HostPort != q.HostPort {
		return false
	}
	switch {
	case !p.HostIP.IsValid(), !q.HostIP.IsValid():
		return true
	case p.HostIP.Is4() != q.HostIP.Is4():
		return false
	}
	return p.HostIP.IsUnspecified() || q.HostIP.IsUnspecified() || p.HostIP == q.HostIP
}

// serves tells whether the port is at addresses of the host of that family.
func (p Port) serves(is4 bool) bool { return !p.HostIP.IsValid() || p.HostIP.Is4() == is4 }
