package nft

import (
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/knftables"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// sets lists all sets and maps. A plain type is declared by an expression that has the
// type (typeof): earlier versions of nft on the node crash on a plain type as nft 1.1.2
// and later write it.
var sets = []struct {
	family, name, typ, typeOf string
	isMap, interval           bool
	// learned sets have elements that the kernel adds as packets pass, for learnedFor.
	learned bool
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
	{family: familyInet, name: "back4", typ: "ipv4_addr . ipv4_addr", learned: true},
	{family: familyInet, name: "back6", typ: "ipv6_addr . ipv6_addr", learned: true},
	{family: familyInet, name: "seen6", typ: "iface_index . ipv6_addr", learned: true},
	{family: familyInet, name: "ports4", typ: "inet_proto . inet_service : ipv4_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports6", typ: "inet_proto . inet_service : ipv6_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports4at", typ: "ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service", isMap: true},
	{family: familyInet, name: "ports6at", typ: "ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service", isMap: true},
	{family: familyARP, name: "asked", typeOf: "meta iif", learned: true},
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

// learnedFor and learnedMost bound the learned sets. An element of seen6 is not prolonged: the source
// of a link is looked up again after learnedFor.
const (
	learnedFor  = 10 * time.Second
	learnedMost = 65536
)

// hostPortPriority is after that of programs that serve Services (-100): the first translation of a
// connection counts, whichever program registered its chain first.
const hostPortPriority = "-90"

// beforeFragments is before the kernel puts fragments together (-400): a packet is of the link of its last
// fragment.
const beforeFragments = "-450"

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
	return slices.Concat(tunnelChains(n), inetChains(n), arpChains(), bridgeChains())
}

// fromPods matches packets of pods whose only neighbour is the node.
var fromPods = fmt.Sprintf("iifgroup { %d, %d } ", link.GroupRouted, link.GroupLeg)

func inetChains(n *Node) []chain {
	leave := []rule{
		{"ip saddr . ip daddr @back4 masquerade fully-random", "a pod that reaches itself must hear its answer through the host"},
		{"ip6 saddr . ip6 daddr @back6 masquerade fully-random", ""},
		{fmt.Sprintf("ip saddr 127.0.0.0/8 oifgroup { %d, %d } masquerade fully-random", link.GroupRouted, link.GroupLeg), "host ports at 127.0.0.1"},
		{fmt.Sprintf("iifgroup %d oifgroup != %[1]d masquerade fully-random", link.GroupLeg), "others do not know the way back to a leg"},
		{fmt.Sprintf("oifgroup %d iif != 0 masquerade fully-random", link.GroupLeg), ""},
	}
	if n.Masquerade {
		out := fmt.Sprintf("oifgroup != %d masquerade fully-random", link.GroupRouted)
		leave = append(leave,
			rule{"ip saddr @local4 ip daddr != @cluster4 " + out, "out of the cluster"},
			rule{"ip6 saddr @local6 ip6 daddr != @cluster6 " + out, ""})
	}
	toPorts := []rule{
		{"ip daddr @own4 fib daddr type local jump host-ports", "not those of Services, nor of the node's resolver"},
		{"ip6 daddr @own6 fib daddr type local jump host-ports", ""},
	}
	return []chain{
		{family: familyInet, name: "from-routed", rules: []rule{
			{"icmpv6 type { nd-router-advert, nd-redirect } counter drop", "a pod is no router"},
			{"ip daddr 127.0.0.0/8 counter drop", "route_localnet is not for pods"},
			{"ip saddr 0.0.0.0 counter drop", "no pod asks its node for an address"},
			{"iif . ip6 saddr @seen6 return", "to look up the route to an IPv6 address costs more than a set"},
			{"fib saddr . iif oif missing counter drop", "the node routes this address elsewhere"},
			{"ip6 saddr != :: add @seen6 { iif . ip6 saddr }", ""},
		}},
		{family: familyInet, name: "back", rules: []rule{
			{"update @back4 { ip saddr . ip daddr }", "the pod that sends it gets it"},
			{"update @back6 { ip6 saddr . ip6 daddr }", ""},
		}},
		{family: familyInet, name: "host-ports", rules: []rule{
			{fmt.Sprintf("udp dport %d ip daddr @tunnel4 return", n.Tunnel.Port), "the tunnel's port is the node's own"},
			{fmt.Sprintf("udp dport %d ip6 daddr @tunnel6 return", n.Tunnel.Port), ""},
			{"dnat ip to ip daddr . meta l4proto . th dport map @ports4at", ""},
			{"dnat ip6 to ip6 daddr . meta l4proto . th dport map @ports6at", ""},
			{"dnat ip to meta l4proto . th dport map @ports4", ""},
			{"dnat ip6 to meta l4proto . th dport map @ports6", ""},
		}},
		{
			family: familyInet, name: "sources",
			typ: knftables.FilterType, hook: knftables.PreroutingHook, priority: beforeFragments,
			rules: []rule{
				{"ip daddr " + v1alpha1.RoutedGatewayV4 + " counter drop", "its route is for ARP: the host would send the packet to itself until its TTL ends"},
				{fromPods + "jump from-routed", ""},
			},
		},
		{
			family: familyInet, name: "entering",
			typ: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.RawPriority,
			rules: []rule{{n.Tunnel.packets() + "jump tunnel-entering", ""}},
		},
		{
			family: familyInet, name: "reporting",
			typ: knftables.FilterType, hook: knftables.PreroutingHook, priority: knftables.ManglePriority,
			rules: []rule{
				{fromPods + "icmp type destination-unreachable icmp code frag-needed ct state != related counter drop", "would lower the MTU of a way that is not the pod's"},
				{fromPods + "icmpv6 type packet-too-big ct state != related counter drop", ""},
			},
		},
		{
			family: familyInet, name: "arriving",
			typ: knftables.NATType, hook: knftables.PreroutingHook, priority: hostPortPriority, rules: toPorts,
		},
		{
			family: familyInet, name: "returning",
			typ: knftables.FilterType, hook: knftables.ForwardHook, priority: knftables.FilterPriority,
			rules: []rule{{fromPods + "ct state new ct status dnat fib daddr . iif oif exists jump back", ""}},
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

// arpChains returns the chain that keeps guests of pods from filling the host's table of neighbours: they
// ask for their gateway alone. Pods themselves do not ask.
func arpChains() []chain {
	return []chain{{
		family: familyARP, name: "asking",
		typ: knftables.FilterType, hook: knftables.InputHook, priority: knftables.FilterPriority,
		rules: []rule{
			{fmt.Sprintf("iifgroup != { %d, %d } accept", link.GroupRouted, link.GroupLeg), ""},
			{"arp daddr ip != " + v1alpha1.RoutedGatewayV4 + " counter drop", "the node asks nobody, and answers for the gateway alone"},
			{"arp saddr ip " + v1alpha1.RoutedGatewayV4 + " counter drop", "a pod is no gateway"},
			{"update @asked { iif limit rate over 6/minute burst 6 packets } counter drop", "too often"},
		},
	}}
}

// bridgeChains returns the chains that accept frames with the pod's own addresses and
// drop all others.
func bridgeChains() []chain {
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
			rules: []rule{{fmt.Sprintf("iifgroup %d jump from-pods", link.GroupPort), ""}},
		},
	}
}
