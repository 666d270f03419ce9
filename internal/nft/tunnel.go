package nft

import (
	"fmt"

	"sigs.k8s.io/knftables"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// afterServices is a priority of the input hook after every program that may redirect a
// packet to another address: IPVS has 99.
const afterServices = "110"

// packets matches datagrams to the tunnel's port, which decides about nearly every packet.
func (t Tunnel) packets() string { return fmt.Sprintf("udp dport %d ", t.Port) }

// numbered matches the number of the network, at bit 96 of the datagram (RFC 7348 section 5).
func (t Tunnel) numbered() string { return fmt.Sprintf("@th,96,24 %d ", t.VNI) }

// tunnelChains returns the chains that allow only nodes to send into the tunnel. The
// first check is at prerouting, before connection tracking. Address translation (a
// Service or a host port that leads to a node's tunnel) comes later. So a second check
// follows where packets reach a socket (input), are forwarded (forward), or leave the
// host itself (output), which is how IPVS forwards. A translation can hide a packet's
// origin from the node that receives it; then the node that sends the packet checks it.
//
// The number of the network lets VXLAN of other programs pass. It is not compared in packets of pods,
// or to the tunnel's own address: a packet may consist of several datagrams (UDP_SEGMENT), and these
// rules see the first.
func tunnelChains(n *Node) []chain {
	others := fmt.Sprintf("iifgroup != { %d, %d, %d } ", link.GroupPort, link.GroupRouted, link.GroupLeg)
	numbered := n.Tunnel.numbered()
	jump := func(to string) []rule { return []rule{{n.Tunnel.packets() + "jump " + to, ""}} }
	return []chain{
		{family: familyInet, name: "tunnel-entering", rules: []rule{
			{others + "ip saddr @peers4 ip daddr @tunnel4 accept", "node to node"},
			{others + "ip6 saddr @peers6 ip6 daddr @tunnel6 accept", ""},
			{fromPods + "fib daddr type != unicast counter drop", "a pod is no node"},
			{fromPods + "ip daddr @peers4 counter drop", ""},
			{fromPods + "ip6 daddr @peers6 counter drop", ""},
			{"ip daddr @tunnel4 counter drop", "not from a node"},
			{"ip6 daddr @tunnel6 counter drop", ""},
			{numbered + "fib daddr type != unicast counter drop", "for this node, and not from a node"},
		}},
		{family: familyInet, name: "tunnel-received", rules: []rule{
			{fromPods + "counter drop", "a pod is no node"},
			{fmt.Sprintf("udp dport %d ct original proto-dst != %[1]d counter drop", n.Tunnel.Port), "was sent to something else"},
			{"ip daddr @tunnel4 ct original ip daddr != @tunnel4 counter drop", ""},
			{"ip6 daddr @tunnel6 ct original ip6 daddr != @tunnel6 counter drop", ""},
			{numbered + "ct original ip daddr != @tunnel4 counter drop", ""},
			{numbered + "ct original ip6 daddr != @tunnel6 counter drop", ""},
		}},
		{family: familyInet, name: "to-peers", rules: []rule{
			{fromPods + "counter drop", "a pod is no node"},
			{"ct status dnat counter drop", "was sent to something else"},
			{"ip saddr @peers4 accept", "this node is a router between nodes"},
			{"ip6 saddr @peers6 accept", ""},
			{numbered + "counter drop", "not from a node"},
		}},
		{family: familyInet, name: "tunnel-passing", rules: []rule{
			{"ip daddr @peers4 jump to-peers", ""},
			{"ip6 daddr @peers6 jump to-peers", ""},
		}},
		{family: familyInet, name: "tunnel-sent", rules: []rule{
			{"ip saddr @tunnel4 accept", "the tunnel itself"},
			{"ip6 saddr @tunnel6 accept", ""},
			{"ip saddr @local4 ip daddr @peers4 counter drop", "a pod is no node"},
			{"ip6 saddr @local6 ip6 daddr @peers6 counter drop", ""},
			{numbered + "ip daddr @peers4 counter drop", "not the tunnel's address"},
			{numbered + "ip6 daddr @peers6 counter drop", ""},
		}},
		{
			family: familyInet, name: "received",
			typ: knftables.FilterType, hook: knftables.InputHook, priority: afterServices, rules: jump("tunnel-received"),
		},
		{
			family: familyInet, name: "passing",
			typ: knftables.FilterType, hook: knftables.ForwardHook, priority: knftables.FilterPriority, rules: jump("tunnel-passing"),
		},
		{
			family: familyInet, name: "sent",
			typ: knftables.FilterType, hook: knftables.OutputHook, priority: knftables.FilterPriority, rules: jump("tunnel-sent"),
		},
	}
}
