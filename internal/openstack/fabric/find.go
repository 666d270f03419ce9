package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// errNoPort means that the node's port is not certain.
var errNoPort = errors.New("no port of the node")

// providerPrefix begins the providerID of a Node on OpenStack: openstack:///UUID, or with a
// region openstack://REGION/UUID.
const providerPrefix = "openstack://"

// machineOf returns the ID of a node's machine; empty if the Node has none.
func machineOf(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, providerPrefix)
	_, id, has := strings.Cut(rest, "/")
	if !ok || !has || id == "" || strings.ContainsAny(id, "/?&=") || len(id) > 64 {
		return ""
	}
	return id
}

// addressesOf returns the addresses by which a node's port is known. The status is the
// node's own word: an address in it counts only within the networks of the configuration,
// and only if the ID of the machine restricts the ports to those of this machine. Otherwise
// a daemon gone bad would open the port of another machine.
func addressesOf(nn *v1alpha1.NodeNetwork, machine string) []netip.Addr {
	networks := parse(nn.Spec.Underlay)
	var out []netip.Addr
	for _, p := range parse(nn.Status.Addresses) { // first: other nodes use these
		in := func(n netip.Prefix) bool { return n.Contains(p.Addr()) && (n.IsSingleIP() || machine != "") }
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

// choose returns the port of a node among those that a query found: the one with an
// address of the node, and of its machine if that is known. taken are the ports of other
// nodes. Errors: errNoPort.
func choose(found []cloud.Port, addresses []netip.Addr, machine string, taken map[string]string) (cloud.Port, error) {
	var fits []cloud.Port
	for _, p := range found {
		has := slices.ContainsFunc(p.Addresses, func(a cloud.Address) bool { return slices.Contains(addresses, a.Addr) })
		if has && (machine == "" || p.DeviceID == machine) {
			fits = append(fits, p)
		}
	}
	switch {
	case len(fits) == 0 && machine != "":
		return cloud.Port{}, fmt.Errorf("%w: machine %s has no port with an address of %v", errNoPort, machine, addresses)
	case len(fits) == 0:
		return cloud.Port{}, fmt.Errorf("%w: no port that the credentials show has an address of %v", errNoPort, addresses)
	case len(fits) > 1 && machine == "":
		return cloud.Port{}, fmt.Errorf("%w: %d ports have an address of %v: the Node must have a providerID (openstack:///ID)", errNoPort, len(fits), addresses)
	}
	// Several ports of a machine: other nodes use the first address.
	for _, a := range addresses {
		for _, p := range fits {
			if !slices.ContainsFunc(p.Addresses, func(x cloud.Address) bool { return x.Addr == a }) {
				continue
			}
			if other := taken[p.ID]; other != "" {
				return cloud.Port{}, fmt.Errorf("%w: port %s is that of node %s", errNoPort, p.ID, other)
			}
			return p, nil
		}
	}
	return cloud.Port{}, errNoPort
}
