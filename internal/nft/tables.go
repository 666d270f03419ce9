package nft

import (
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
)

// sets lists all sets and maps. A plain type is declared by an expression that has the
// type (typeof): earlier versions of nft on the node crash on a plain type as nft 1.1.2
// and later write it.
var sets = []struct {
	family, name, typ, typeOf string
	isMap, interval           bool
}{
	{family: familyInet, name: "revision", typeOf: "meta mark"},
	{family: familyInet, name: "local4", typeOf: "ip saddr", interval: true},
	{family: familyInet, name: "local6", typeOf: "ip6 saddr", interval: true},
	{family: familyInet, name: "cluster4", typeOf: "ip daddr", interval: true},
	{family: familyInet, name: "cluster6", typeOf: "ip6 daddr", interval: true},
	{family: familyInet, name: "tunnel4", typeOf: "ip daddr"},
	{family: familyInet, name: "tunnel6", typeOf: "ip6 daddr"},
	{family: familyInet, name: "peers4", typeOf: "ip saddr"},
	{family: familyInet, name: "peers6", typeOf: "ip6 saddr"},
	{family: familyInet, name: "own4", typeOf: "ip daddr"},
	{family: familyInet, name: "own6", typeOf: "ip6 daddr"},
	{family: familyInet, name: "self4", typ: "ipv4_addr . ipv4_addr"},
	{family: familyInet, name: "self6", typ: "ipv6_addr . ipv6_addr"},
	{family: familyInet, name: "ports4", typ: "inet_proto . inet_service : ipv4_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports6", typ: "inet_proto . inet_service : ipv6_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports4at", typ: "ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports6at", typ: "ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service", isMap: true},
	{family: familyBridge, name: "unchecked", typeOf: "iifname"},
	{family: familyBridge, name: "trusted", typeOf: "iifname"},
	{family: familyBridge, name: "macs", typ: "ifname . ether_addr"},
	{family: familyBridge, name: "trunks", typ: "ifname . ether_addr"},
	{family: familyBridge, name: "stations", typ: "ifname . ether_addr"},
	{family: familyBridge, name: "sources4", typ: "ifname . ether_addr . ipv4_addr"},
	{family: familyBridge, name: "sources6", typ: "ifname . ether_addr . ipv6_addr"},
	{family: familyBridge, name: "targets", typeOf: "iifname . ether saddr . @th,64,128"},
}

// isMap reports whether name is the name of a map.
func isMap(name string) bool {
	for _, s := range sets {
		if s.name == name {
			return s.isMap
		}
	}
	return false
}

// hostPortPriority is after that of programs that serve Services (-100): the first translation of a
// connection counts, whichever program registered its chain first.
const hostPortPriority = "-90"

// chain is a chain with its rules; a base chain if it has a hook.
type chain struct {
	family, name string
	typ          knftables.BaseChainType
	hook         knftables.BaseChainHook
	priority     knftables.BaseChainPriority
	rules        []rule
}

type rule struct{ text, comment string }

// chains returns the chains of a node; a chain precedes the chains that jump to it.
func chains(n *Node) []chain {
	return slices.Concat(tunnelChains(n), inetChains(n), bridgeChains(n))
}

func inetChains(n *Node) []chain {
	bridge := fmt.Sprintf("%q", n.Bridge)
	leave := []rule{
		{"ip saddr . ip daddr @self4 masquerade fully-random", "a pod that reaches itself must hear its answer through the host"},
		{"ip6 saddr . ip6 daddr @self6 masquerade fully-random", ""},
		{"ip saddr 127.0.0.0/8 oifname " + bridge + " masquerade fully-random", "host ports at 127.0.0.1"},
	}
	if n.Masquerade {
		leave = append(leave,
			rule{"ip saddr @local4 ip daddr != @cluster4 oifname != " + bridge + " masquerade fully-random", "out of the cluster"},
			rule{"ip6 saddr @local6 ip6 daddr != @cluster6 oifname != " + bridge + " masquerade fully-random", ""})
	}
	toPorts := []rule{
		{"ip daddr @own4 fib daddr type local jump host-ports", "not those of Services, nor of the node's resolver"},
		{"ip6 daddr @own6 fib daddr type local jump host-ports", ""},
	}
	return []chain{
		{family: familyInet, name: "host-ports", rules: []rule{
			{fmt.Sprintf("udp dport %d ip daddr @tunnel4 return", n.Tunnel.Port), "the tunnel's port is the node's own"},
			{fmt.Sprintf("udp dport %d ip6 daddr @tunnel6 return", n.Tunnel.Port), ""},
			{"dnat ip to ip daddr . meta l4proto . th dport map @ports4at", ""},
			{"dnat ip6 to ip6 daddr . meta l4proto . th dport map @ports6at", ""},
			{"dnat ip to meta l4proto . th dport map @ports4", ""},
			{"dnat ip6 to meta l4proto . th dport map @ports6", ""},
		}},
		{
			family: familyInet, name: "entering",
			typ: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.RawPriority,
			rules: []rule{
				{n.Tunnel.packets() + "jump tunnel-entering", ""},
				{"iifname " + bridge + " ip daddr 127.0.0.0/8 counter drop", "route_localnet is not for pods"},
			},
		},
		{
			family: familyInet, name: "arriving",
			typ: knftables.NATType, hook: knftables.PreroutingHook, priority: hostPortPriority, rules: toPorts,
		},
		{
			family: familyInet, name: "own",
			typ: knftables.NATType, hook: knftables.OutputHook, priority: hostPortPriority, rules: toPorts,
		},
		{
			family: familyInet, name: "leaving",
			typ: knftables.NATType, hook: knftables.PostroutingHook, priority: knftables.SNATPriority, rules: leave,
		},
	}
}

// bridgeChains returns the chains that accept frames with the pod's own addresses and
// drop all others.
func bridgeChains(n *Node) []chain {
	const (
		known   = "iifname . ether saddr @stations "
		advert  = "icmpv6 type nd-neighbor-advert "
		noState = "icmpv6 type { nd-neighbor-solicit, nd-router-solicit, mld2-listener-report } "
	)
	return []chain{
		{family: familyBridge, name: "ipv6-from-pods", rules: []rule{
			{"icmpv6 type { nd-router-advert, nd-redirect } counter drop", "a pod is no router"},
			{advert + "iifname . ether saddr . @th,64,128 != @targets counter drop", "speaks for another"},
			{"iifname . ether saddr . ip6 saddr @sources6 accept", ""},
			{"ip6 saddr :: " + known + noState + "accept", "before it has an address"},
		}},
		{family: familyBridge, name: "arp-from-pods", rules: []rule{
			{"iifname . ether saddr . arp saddr ip @sources4 iifname . arp saddr ether . arp saddr ip @sources4 accept", ""},
			{"arp saddr ip 0.0.0.0 " + known + "iifname . arp saddr ether @stations accept", "a probe (RFC 5227)"},
		}},
		{family: familyBridge, name: "from-pods", rules: []rule{
			{"ether type ip iifname . ether saddr . ip saddr @sources4 accept", ""},
			{"iifname . ether saddr @macs accept", "only the MAC of this interface is checked"},
			{"iifname @trusted accept", "this interface is not checked"},
			{"ether type vlan iifname . ether saddr @trunks accept", "the bridge knows the VLANs of this interface"},
			{"ether type ip6 jump ipv6-from-pods", ""},
			{"ether type arp jump arp-from-pods", ""},
			{"iifname @unchecked accept", "the record of this sandbox was lost"},
			{"counter drop", "not the pod's own address"},
		}},
		{
			family: familyBridge, name: "sending",
			typ: knftables.FilterType, hook: knftables.PreroutingHook, priority: "-300",
			rules: []rule{{fmt.Sprintf("iifgroup %d jump from-pods", n.LinkGroup), ""}},
		},
	}
}
