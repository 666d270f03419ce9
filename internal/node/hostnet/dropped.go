package hostnet

import (
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/node/direct"
)

// drops reports whether packets of pods between this node and another are dropped unless
// they are encapsulated, by the word of either. Both nodes come to the same result, so both
// use the tunnel. A node that lies about it changes only the way of its own packets. routed
// is true if the other node is in another subnet.
func (p *planner) drops(nn *v1alpha1.NodeNetwork, routed bool) bool {
	return names(p.dropped, nn.Name, routed) || names(nn.Status.Dropped, p.node, routed)
}

func names(dropped []string, node string, routed bool) bool {
	return slices.Contains(dropped, node) || slices.Contains(dropped, v1alpha1.DroppedToAll) ||
		routed && slices.Contains(dropped, v1alpha1.DroppedToRouted)
}

// directLinks returns the addresses that the detector probes: those of the nodes with
// blocks that are reached without the tunnel. They stay the same while the tunnel is used
// for these nodes, so that the detector finds out when it is no longer needed.
func directLinks(e Encapsulation, own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, up host.Uplink) direct.Links {
	var l direct.Links
	if e == EncapsulationVXLAN {
		return l
	}
	p := newPlanner(config{encapsulation: e}, own, up)
	for _, a := range p.mine {
		l.Own = append(l.Own, a.Addr())
	}
	l.Pods = podsOf(own)
	for _, nn := range byName(all) {
		believed, _ := UnderlayOf(nn)
		if nn.Name == own.Name || len(nn.Spec.Blocks) == 0 {
			continue
		}
		peer := direct.Peer{Name: nn.Name}
		for _, mine := range p.mine {
			via, onLink := p.sharedLink(believed, mine)
			routed := !onLink && p.routesTo(nn, believed, mine.Addr())
			if onLink && via != mine.Addr() || routed {
				peer.Addresses = append(peer.Addresses, via)
				peer.Routed = peer.Routed || routed
			}
		}
		if len(peer.Addresses) > 0 {
			l.Peers = append(l.Peers, peer)
		}
	}
	return l
}

// podsOf returns the first address of the first block of each family of a node.
func podsOf(own *v1alpha1.NodeNetwork) []netip.Addr {
	var out []netip.Addr
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		for _, s := range own.Spec.Blocks {
			if block, err := parseBlock(s); err == nil && is(block.Addr()) {
				out = append(out, block.Addr())
				break
			}
		}
	}
	return out
}
