package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
)

// The gateways of every pod on every node: link-local, so that they need not be
// unique and a pod's route never changes.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// planHost works out what the default network needs on this node: its own
// blocks on the bridge, and a route to the blocks of every node that shares the
// uplink's link. It returns what could not be planned, in words; that stops
// nothing else.
func planHost(bridge string, own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, up netdev.Uplink) (netdev.HostState, []string) {
	want := netdev.HostState{
		Bridge: bridge, MTU: up.MTU, Uplink: up.Name,
		Gateways: []netip.Addr{gateway4, gateway6},
	}
	var problems []string
	note := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	for _, s := range own.Spec.Blocks {
		block, err := netip.ParsePrefix(s)
		if err != nil {
			note("block %q of this node: must be in CIDR form", s)
			continue
		}
		local := netdev.LocalBlock{Prefix: block.Masked()}
		if a, ok := ofFamily(up.Addresses, block.Addr()); ok {
			local.Source = a.Addr()
		}
		want.Local = append(want.Local, local)
	}
	for _, nn := range slices.SortedFunc(slices.Values(all), func(a, b v1alpha1.NodeNetwork) int { return cmp.Compare(a.Name, b.Name) }) {
		if nn.Name == own.Name {
			continue
		}
		peers, problem := planPeer(&nn, up)
		want.Peers = append(want.Peers, peers...)
		if problem != "" {
			note("node %s %s", nn.Name, problem)
		}
	}
	return want, problems
}

// planPeer works out the routes to one other node, or why there are none.
func planPeer(nn *v1alpha1.NodeNetwork, up netdev.Uplink) (peers []netdev.PeerBlock, problem string) {
	var addresses []netip.Prefix
	for _, s := range nn.Status.Addresses {
		if a, err := netip.ParsePrefix(s); err == nil {
			addresses = append(addresses, a)
		}
	}
	for _, s := range nn.Spec.Blocks {
		block, err := netip.ParsePrefix(s)
		if err != nil {
			problem = fmt.Sprintf("has block %q: must be in CIDR form", s)
			continue
		}
		via, ok := ofFamily(addresses, block.Addr())
		mine, shared := ofFamily(up.Addresses, block.Addr())
		switch {
		case len(addresses) == 0:
			problem = "has not written its addresses yet"
		case !ok || !shared || !mine.Contains(via.Addr()):
			problem = "is not on a shared link; encapsulation is not there yet"
		case mine.Addr() == via.Addr():
			problem = fmt.Sprintf("says that it has the address %s, which is this node's", via.Addr())
		default:
			peers = append(peers, netdev.PeerBlock{Prefix: block.Masked(), Via: via.Addr()})
		}
	}
	return peers, problem
}

// ofFamily returns the first prefix of the family of an address.
func ofFamily(prefixes []netip.Prefix, family netip.Addr) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if p.Addr().Is4() == family.Is4() {
			return p, true
		}
	}
	return netip.Prefix{}, false
}
