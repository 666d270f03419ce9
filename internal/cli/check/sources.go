package check

import (
	"net/netip"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
)

// checker is the part of a cluster that drops packets with forged source addresses.
type checker string

const (
	// byNode is the packet filter of the node.
	byNode checker = "Node"
	// byNeutron is the port security of OpenStack.
	byNeutron checker = "Neutron"
)

// otherPlugin is the reason why source addresses are not checked on a network of another
// plugin.
const otherPlugin = "another plugin makes the interface"

// checkerOf returns the checker of an interface, or the reason why there is none.
func checkerOf(b v1alpha1.Binding) (c checker, unchecked string) {
	switch {
	case b.Routed != nil, b.Bridge != nil && (b.Bridge.SourceCheck == "" || b.Bridge.SourceCheck == v1alpha1.SourceFull):
		return byNode, ""
	case b.Bridge != nil:
		return "", "sourceCheck of the network is " + string(b.Bridge.SourceCheck)
	case b.OVS != nil, b.VLAN != nil && b.VLAN.PortID != "":
		return byNeutron, ""
	case b.Macvlan != nil && b.Macvlan.PortID != "":
		return "", "pods of a node share the port of its machine, and can send as each other"
	case b.Delegate != nil, b.AddressOnly != nil:
		return "", otherPlugin
	}
	return "", "packets of macvlan, ipvlan, vlan and hostDevice do not pass the packet filter of the node"
}

// sources has the sender of a node send with the addresses of other pods, to the servers of
// its own and of the next node.
func (p *planner) sources(from, next *members) {
	if from.refused != "" {
		p.rows = append(p.rows, Row{Test: testSource, From: from.name, Result: NotTried, Detail: from.refused})
	}
	if from.sender == nil {
		return
	}
	targets := []*members{from}
	if next != from {
		targets = append(targets, next)
	}
	for _, own := range from.sender.on {
		row := Row{Test: testSource, Network: own.network, Family: family(own.addr), From: from.name, CheckedBy: own.checkedBy}
		if own.checkedBy == "" {
			row.Result, row.Detail = NotTried, own.unchecked
			p.rows = append(p.rows, row)
			continue
		}
		for _, to := range targets {
			row.To = to.name
			for _, there := range to.server.like(own) {
				if forged, ok := another(own, there, from.server, from.hostPort, next.server); ok {
					p.add(from.sender, row, probe.Probe{
						Kind: probe.Forged, Address: at(there.addr, serverPort), Name: to.server.pod.Name,
						Source: own.addr.String(), Forged: forged.String(),
					})
				}
			}
		}
	}
}

// another returns the first address of some pods that is on the network of own and is not
// there. Pods of the sender's node come first: only a check of the single address finds their
// addresses, and one of the node's subnet does not. A packet with the address of its
// receiver would be dropped by the receiver itself.
func another(own, there address, pods ...*attached) (netip.Addr, bool) {
	for _, a := range pods {
		for _, other := range a.like(own) {
			if other.addr != there.addr {
				return other.addr, true
			}
		}
	}
	return netip.Addr{}, false
}
