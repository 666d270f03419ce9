// Package nft keeps the node's packet filter: it masquerades packets that leave the
// cluster, forwards ports of the host to pods, and drops packets that a pod sends with
// another's address. It is the only importer of knftables, which runs the program nft.
//
// All rules are in three tables of Fairlead's own, "inet fairlead", "arp fairlead" and "bridge
// fairlead". The table "netdev fairlead-shut" has a chain for each link that is shut.
// Pure functions convert the wanted state into elements of sets and maps. A Keeper writes
// them into the kernel, many pods in one transaction, and restores them if another
// program removes them.
package nft

import (
	"net"
	"net/netip"
)

// Table is the name of the tables of the families inet, arp and bridge.
const Table = "fairlead"

// Node is the node's part of the rules.
type Node struct {
	// Own are the addresses at which the node has the host ports of pods.
	Own []netip.Addr
	// Masquerade gives packets from pods to outside the cluster an address of the node as
	// their source.
	Masquerade bool
	// Local are the blocks of this node's pods.
	Local []netip.Prefix
	// Cluster lists the destinations that pods reach with their own addresses: every
	// node's blocks and addresses, and the destinations that the operator excludes from
	// masquerading.
	Cluster []netip.Prefix
	// Tunnel identifies the packets of the tunnel.
	Tunnel Tunnel
	// Underlay are the addresses of this node's tunnel endpoint; empty if the node
	// receives no encapsulated packets.
	Underlay []netip.Addr
	// Peers are the addresses of the other nodes. Only they may send tunnel packets to
	// this node, and no pod may send a tunnel packet to them.
	Peers []netip.Addr
}

// Tunnel identifies the UDP datagrams of the tunnel between nodes (VXLAN, RFC 7348).
// Datagrams to the same port with another network number do not belong to it.
type Tunnel struct {
	// Port is the UDP port, 1 to 65535; VNI is the network's number, 1 to 16777215.
	Port, VNI int
}

// Pod is a sandbox's part of the rules.
type Pod struct {
	// Links are the sandbox's links on the host.
	Links []Link
	// Addresses are the targets of Ports, at most one per family.
	Addresses []netip.Addr
	// Ports are the ports of the host that lead to the sandbox.
	Ports []Port
}

// Link is the host end of an interface, and the source addresses that are allowed on it.
type Link struct {
	Name string
	// MAC and Addresses are the allowed source addresses. Beside Addresses, the link-local
	// IPv6 address that the kernel derives from the MAC (RFC 4291, appendix A) is allowed.
	MAC       net.HardwareAddr
	Addresses []netip.Addr
	// Check is the extent of the check.
	Check Check
	// Tagged allows, beside what CheckFull allows, frames with a VLAN tag from MAC. Their
	// other addresses are those of other networks.
	Tagged bool
}

// Check is the extent of the check of the packets on a link.
type Check int

const (
	// CheckFull allows MAC and Addresses alone. Without Addresses it allows nothing: no IP,
	// no ARP, no neighbour discovery.
	CheckFull Check = iota
	// CheckMAC allows any packet from MAC.
	CheckMAC
	// CheckNone allows any packet.
	CheckNone
	// CheckLost allows any source address, because the record of the sandbox was lost.
	CheckLost
)

// Port is a port of the host that leads to a pod.
type Port struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string `json:"protocol"`
	// HostIP is the address of the host with the port. An unspecified address means every
	// address of its family; an invalid one means every address of both families.
	HostIP        netip.Addr `json:"hostIP,omitzero"`
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
}

// Overlaps reports whether two ports exclude each other.
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

// serves reports whether the port applies to addresses of the given family.
func (p Port) serves(is4 bool) bool { return !p.HostIP.IsValid() || p.HostIP.Is4() == is4 }
