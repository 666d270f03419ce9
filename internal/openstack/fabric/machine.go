package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// ErrNoPort means that the node's port is not certain.
var ErrNoPort = errors.New("no port of the node")

// providerPrefix begins the providerID of a Node on OpenStack: openstack:///UUID, or with a region
// openstack://REGION/UUID.
const providerPrefix = "openstack://"

// MachineID returns the ID of a node's machine; empty if the Node has none.
func MachineID(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, providerPrefix)
	_, id, has := strings.Cut(rest, "/")
	if !ok || !has || id == "" || strings.ContainsAny(id, "/?&=") || len(id) > 64 {
		return ""
	}
	return id
}

// NodeAddresses returns the internal addresses of a Node.
func NodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out = append(out, addr)
		}
	}
	return out
}

// Rival returns the Node that has the machine of a node, or without a machine one of its
// addresses, and is older; empty if there is none. A kubelet gone bad can register its own
// Node anew as the machine of another, but not make it older.
func Rival(of *corev1.Node, all []corev1.Node) string {
	id, addresses := MachineID(of.Spec.ProviderID), NodeAddresses(of)
	for i := range all {
		n := &all[i]
		same := id != "" && MachineID(n.Spec.ProviderID) == id
		if id == "" {
			same = slices.ContainsFunc(NodeAddresses(n), func(a netip.Addr) bool { return slices.Contains(addresses, a) })
		}
		if !same || n.Name == of.Name {
			continue
		}
		its, own := n.CreationTimestamp.Time, of.CreationTimestamp.Time
		if its.Before(own) || its.Equal(own) && n.Name < of.Name {
			return n.Name
		}
	}
	return ""
}

// portReader reads ports of the cloud.
type portReader interface {
	Ports(ctx context.Context, q cloud.PortQuery) ([]cloud.Port, error)
}

// MachinePort returns the port of a machine that has one of the addresses. Without the ID of the
// machine, the addresses alone decide. Errors: ErrNoPort, and those of the cloud.
func MachinePort(ctx context.Context, c portReader, id string, addresses []netip.Addr) (cloud.Port, error) {
	queries := []cloud.PortQuery{{DeviceID: id}}
	if id == "" {
		queries = nil
		for _, a := range addresses {
			queries = append(queries, cloud.PortQuery{Address: a})
		}
	}
	var found []cloud.Port
	for _, q := range queries {
		some, err := c.Ports(ctx, q)
		if err != nil {
			return cloud.Port{}, err
		}
		for _, p := range some {
			if !slices.ContainsFunc(found, func(has cloud.Port) bool { return has.ID == p.ID }) {
				found = append(found, p)
			}
		}
	}
	return choosePort(found, id, addresses)
}

// choosePort returns the port of a machine among those that were found. Several ports of one
// machine may fit: the order of the addresses decides. Errors: ErrNoPort.
func choosePort(found []cloud.Port, id string, addresses []netip.Addr) (cloud.Port, error) {
	has := func(p cloud.Port, a netip.Addr) bool {
		return slices.ContainsFunc(p.Addresses, func(x cloud.Address) bool { return x.Addr == a })
	}
	var fits []cloud.Port
	for _, a := range addresses {
		for _, p := range found {
			known := slices.ContainsFunc(fits, func(f cloud.Port) bool { return f.ID == p.ID })
			if has(p, a) && !known && (id == "" || p.DeviceID == id) {
				fits = append(fits, p)
			}
		}
	}
	switch {
	case len(fits) == 0 && id != "":
		return cloud.Port{}, fmt.Errorf("%w: machine %s has no port with an address of %v", ErrNoPort, id, addresses)
	case len(fits) == 0:
		return cloud.Port{}, fmt.Errorf("%w: no port that the credentials show has an address of %v", ErrNoPort, addresses)
	case len(fits) > 1 && id == "":
		return cloud.Port{}, fmt.Errorf("%w: %d ports have an address of %v: the Node must have a providerID (openstack:///ID)", ErrNoPort, len(fits), addresses)
	}
	return fits[0], nil
}
