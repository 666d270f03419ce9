package hostnet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
)

// Encapsulation selects the packets to pods of other nodes that go through the tunnel.
type Encapsulation string

// The values of Encapsulation.
const (
	// EncapsulationNone selects no packets; the nodes must share a link or a router that has
	// routes to pods.
	EncapsulationNone Encapsulation = "none"
	// EncapsulationVXLAN selects all packets.
	EncapsulationVXLAN Encapsulation = "vxlan"
	// EncapsulationAuto selects packets to nodes that share no link with this node and are
	// not reached by the cloud's router, and to nodes between which the network drops
	// packets of pods.
	EncapsulationAuto Encapsulation = "auto"
)

// config has the settings of the node's network.
type config struct {
	encapsulation Encapsulation
	vni, port     int // of the tunnel
	// dropped is NodeNetworkStatus.Dropped of this node.
	dropped []string
}

// planner plans the network of one node.
type planner struct {
	config
	up     host.Uplink
	mine   []netip.Prefix // the confirmed addresses of the uplink
	tunnel *host.Tunnel   // nil if nothing is encapsulated
	node   string         // the name of this node
	routed []netip.Prefix // of this node's blocks, by the cloud's router
	loose  bool           // a node that may send plainly is reached through the tunnel

	// The owner of each underlay address. A node cannot divert packets to another node by
	// reporting the same address.
	addresses map[netip.Addr]*v1alpha1.NodeNetwork
}

func newPlanner(c config, own *v1alpha1.NodeNetwork, up host.Uplink) *planner {
	return &planner{config: c, up: up, mine: confirmedOf(own, up.Addresses), node: own.Name, routed: routedOf(own)}
}

// planHost plans the default network of this node: its own blocks, and
// routes to the blocks of every other node, by the uplink or through the tunnel.
// It also returns a message for each block or node that could not be planned, which
// affects no other. The status that another node writes decides only about the routes to
// that node's own blocks.
func planHost(c config, own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, up host.Uplink) (host.State, []string) {
	p := newPlanner(c, own, up)
	want := host.State{Uplink: up.Name, Sources: up.Sources}
	want.IPv4, want.IPv6 = families(own, all)
	if c.encapsulation != EncapsulationNone && len(up.Addresses) > 0 {
		p.tunnel = &host.Tunnel{VNI: c.vni, Port: c.port, MAC: host.TunnelMAC(own.Name), MTU: up.MTU}
		for _, a := range up.Addresses {
			p.tunnel.Underlay = append(p.tunnel.Underlay, a.Addr())
		}
		want.Tunnel = p.tunnel
		p.findOwners(all)
	}
	var problems []string
	note := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	for _, s := range own.Spec.Blocks {
		block, err := parseBlock(s)
		if err != nil {
			note("block %q of this node: %s", s, err)
			continue
		}
		want.Local = append(want.Local, block)
	}
	for _, nn := range byName(all) {
		if nn.Name == own.Name {
			continue
		}
		peers, remote, problem := p.peer(nn)
		want.Peers, want.Remote = append(want.Peers, peers...), append(want.Remote, remote...)
		if problem != "" {
			note("node %s %s", nn.Name, problem)
		}
	}
	want.Loose = p.loose
	return want, problems
}

// families reports which families the blocks of all nodes have. A node forwards no other: the
// kernel may lack it, and forwarding of IPv6 could only be enabled on every link at once.
func families(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork) (has4, has6 bool) {
	note := func(blocks []string) {
		for _, s := range blocks {
			if block, err := parseBlock(s); err == nil {
				has4, has6 = has4 || block.Addr().Is4(), has6 || block.Addr().Is6()
			}
		}
	}
	note(own.Spec.Blocks) // own may be newer than this node's entry in all
	for i := range all {
		note(all[i].Spec.Blocks)
	}
	return has4, has6
}

// podMTU returns the MTU of pods by that of the uplink, in bytes. It
// does not depend on the nodes of the moment, because a pod keeps its MTU for life.
func (c config) podMTU(up host.Uplink) int {
	if c.encapsulation == EncapsulationNone {
		return up.MTU
	}
	if len(up.Addresses) == 1 && up.Addresses[0].Addr().Is4() {
		return up.MTU - host.TunnelOverhead(netip.IPv4Unspecified())
	}
	return up.MTU - host.TunnelOverhead(netip.IPv6Unspecified())
}

func byName(all []v1alpha1.NodeNetwork) []*v1alpha1.NodeNetwork {
	sorted := make([]*v1alpha1.NodeNetwork, len(all))
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortFunc(sorted, func(a, b *v1alpha1.NodeNetwork) int { return cmp.Compare(a.Name, b.Name) })
	return sorted
}

// findOwners finds the owner of each address. Age decides: the creation
// time of a NodeNetwork comes from the API server, not from its node.
func (p *planner) findOwners(all []v1alpha1.NodeNetwork) {
	p.addresses = map[netip.Addr]*v1alpha1.NodeNetwork{}
	for i := range all {
		nn := &all[i]
		believed, _ := UnderlayOf(nn)
		for _, a := range believed {
			if first := p.addresses[a.Addr()]; first == nil || surer(nn, first, a.Addr()) {
				p.addresses[a.Addr()] = nn
			}
		}
	}
}

// surer reports whether node a has a better claim to an address than node b. Confirmation
// of the address itself counts more than confirmation of a network around it. If both
// nodes are confirmed alike, the older NodeNetwork wins.
func surer(a, b *v1alpha1.NodeNetwork, address netip.Addr) bool {
	if x, y := namesAddress(a, address), namesAddress(b, address); x != y {
		return x
	}
	return older(a, b)
}

func older(a, b *v1alpha1.NodeNetwork) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// peer plans the routes to the blocks of one other node. problem is the reason if a block
// has none, without the node's name; empty if all have one.
func (p *planner) peer(nn *v1alpha1.NodeNetwork) (peers []host.PeerBlock, remote []host.RemoteNode, problem string) {
	addresses, doubted := UnderlayOf(nn)
	switch {
	case len(nn.Spec.Blocks) == 0 || len(addresses) > 0:
	case len(doubted) > 0:
		return nil, nil, unconfirmed(doubted)
	default:
		return nil, nil, "has not written its addresses yet"
	}
	for _, mine := range p.up.Addresses {
		if slices.ContainsFunc(addresses, func(a netip.Prefix) bool { return a.Addr() == mine.Addr() }) {
			return nil, nil, fmt.Sprintf("says that it has the address %s, which is this node's", mine.Addr())
		}
	}
	for _, s := range nn.Spec.Blocks {
		block, err := parseBlock(s)
		if err != nil {
			problem = fmt.Sprintf("has block %q: %s", s, err)
			continue
		}
		via, plain := p.sharedLink(addresses, block)
		routed := false
		if !plain {
			via, routed = p.routedBy(nn, addresses, block)
			plain = routed
		}
		if plain && p.encapsulation != EncapsulationVXLAN && !p.drops(nn, routed) {
			peers = append(peers, host.PeerBlock{Prefix: block, Via: via})
			continue
		}
		node, why := p.behindTunnel(nn, addresses, block)
		switch {
		case why == "":
			remote = join(remote, node)
			arrives := plain || p.routesTo(nn, addresses, block.Addr()) // a new block's packets come before its route
			p.loose = p.loose || arrives && p.encapsulation == EncapsulationAuto
		case plain: // the other node does not encapsulate yet, or no longer
			peers = append(peers, host.PeerBlock{Prefix: block, Via: via})
		case len(doubted) > 0:
			problem = why + ", and " + unconfirmed(doubted)
		default:
			problem = why
		}
	}
	return peers, remote, problem
}

// sharedLink returns the address of the other node on the uplink's link, for a block's
// family, and whether there is one.
func (p *planner) sharedLink(addresses []netip.Prefix, block netip.Prefix) (netip.Addr, bool) {
	via, has := ofFamily(addresses, block.Addr())
	mine, have := ofFamily(p.mine, block.Addr())
	return via.Addr(), has && have && mine.Contains(via.Addr())
}

// behindTunnel returns the route to a block through the tunnel, or the reason why there
// is none.
func (p *planner) behindTunnel(nn *v1alpha1.NodeNetwork, addresses []netip.Prefix, block netip.Prefix) (host.RemoteNode, string) {
	const offLink = "is not on a shared link, and "
	if p.tunnel == nil {
		return host.RemoteNode{}, offLink + "this node does not encapsulate (encapsulation is none)"
	}
	if nn.Status.Tunnel == nil {
		return host.RemoteNode{}, offLink + "takes nothing encapsulated"
	}
	mac, err := net.ParseMAC(nn.Status.Tunnel.MAC)
	if err == nil {
		err = host.CheckTunnelMAC(mac)
	}
	if err != nil {
		return host.RemoteNode{}, fmt.Sprintf("has a tunnel with the MAC %q: %s", nn.Status.Tunnel.MAC, err)
	}
	if own := host.TunnelMAC(nn.Name); !bytes.Equal(mac, own) { // of another node, or of none
		return host.RemoteNode{}, fmt.Sprintf("says that its tunnel has the MAC %s, and that of a node of this name is %s", mac, own)
	}
	underlay, ok := p.underlayTo(addresses, block.Addr())
	if !ok && len(p.mine) == 0 && len(p.up.Addresses) > 0 {
		return host.RemoteNode{}, "is not reached: no address of this node is confirmed"
	}
	if !ok {
		return host.RemoteNode{}, "has no address of a family that this node has"
	}
	if first := p.addresses[underlay]; first != nn {
		return host.RemoteNode{}, fmt.Sprintf("says that it has the address %s, which is that of node %s", underlay, first.Name)
	}
	return host.RemoteNode{Underlay: underlay, MAC: mac, Blocks: []netip.Prefix{block}}, ""
}

// underlayTo chooses the other node's underlay address for the packets of one family. It
// prefers an address of the same family, if both nodes have it: then packets from pods
// to the node itself and their answers take the same way.
func (p *planner) underlayTo(addresses []netip.Prefix, of netip.Addr) (netip.Addr, bool) {
	other := netip.IPv4Unspecified()
	if of.Is4() {
		other = netip.IPv6Unspecified()
	}
	for _, family := range []netip.Addr{of, other} {
		theirs, has := ofFamily(addresses, family)
		_, have := ofFamily(p.mine, family)
		if has && have {
			return theirs.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// join adds a node to remote, or its blocks to the entry with the same underlay address.
func join(remote []host.RemoteNode, node host.RemoteNode) []host.RemoteNode {
	for i := range remote {
		if remote[i].Underlay == node.Underlay {
			remote[i].Blocks = append(remote[i].Blocks, node.Blocks...)
			return remote
		}
	}
	return append(remote, node)
}

func parseBlock(s string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(s)
	if err != nil || block.Addr().Is4In6() || block.Bits() == 0 {
		return netip.Prefix{}, errors.New("must be in CIDR form, and not the whole address space")
	}
	return block.Masked(), nil
}

// ofFamily returns the first prefix of the family of an address, and whether there is one.
func ofFamily(prefixes []netip.Prefix, family netip.Addr) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if p.Addr().Is4() == family.Is4() {
			return p, true
		}
	}
	return netip.Prefix{}, false
}
