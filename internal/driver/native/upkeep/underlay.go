package upkeep

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// maxConfirmed is the largest number of addresses of a Node that are written. A machine
// has a few. A NodeNetwork has room for 64 networks, some of them from the configuration.
const maxConfirmed = 40

// addressesOf returns the internal and external addresses of a Node, sorted.
func addressesOf(node *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, n := range node.Status.Addresses {
		a, err := netip.ParseAddr(n.Address)
		if err == nil && a.Zone() == "" && a.IsGlobalUnicast() && (n.Type == corev1.NodeInternalIP || n.Type == corev1.NodeExternalIP) {
			out = append(out, a.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// confirmed returns the networks of a node's own addresses, sorted and never nil: the
// addresses of its Node, each as a network of one address, and the networks of the
// configuration (only). If the configuration has networks, an address outside of them is
// left out: the kubelet writes the addresses of a Node, the operator writes the configuration.
func confirmed(addresses []netip.Addr, only []netip.Prefix) []string {
	out := []string{}
	for _, a := range addresses {
		if len(only) == 0 || slices.ContainsFunc(only, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	out = out[:min(len(out), maxConfirmed)]
	for _, p := range only {
		out = append(out, p.Masked().String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addressesChanged selects updates that change the addresses of a Node. Its status is also
// written every few minutes without such a change.
func addressesChanged() predicate.Predicate {
	addresses := func(o client.Object) []corev1.NodeAddress {
		if n, ok := o.(*corev1.Node); ok {
			return n.Status.Addresses
		}
		return nil
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(addresses(e.ObjectOld), addresses(e.ObjectNew))
	}}
}
