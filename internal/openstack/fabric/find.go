package fabric

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// addressesOf returns the addresses by which a node's port is known. The status is the
// node's own word: an address in it counts only within the networks of the configuration,
// and only if the ID of the machine restricts the ports to those of this machine. Otherwise
// a daemon gone bad would open the port of another machine.
func addressesOf(nn *v1alpha1.NodeNetwork, id string) []netip.Addr {
	networks := parse(nn.Spec.Underlay)
	var out []netip.Addr
	for _, p := range parse(nn.Status.Addresses) { // first: other nodes use these
		in := func(n netip.Prefix) bool { return n.Contains(p.Addr()) && (n.IsSingleIP() || id != "") }
		if slices.ContainsFunc(networks, in) {
			out = append(out, p.Addr())
		}
	}
	for _, p := range networks {
		if p.IsSingleIP() && !slices.Contains(out, p.Addr()) {
			out = append(out, p.Addr())
		}
	}
	return out
}

// unlessTaken returns a port that was found, if it is not one of those of other nodes. Errors:
// err, ErrNoPort.
func unlessTaken(p cloud.Port, err error, taken map[string]string) (cloud.Port, error) {
	if err != nil {
		return cloud.Port{}, err
	}
	if other := taken[p.ID]; other != "" {
		return cloud.Port{}, fmt.Errorf("%w: port %s is that of node %s", ErrNoPort, p.ID, other)
	}
	return p, nil
}
