package upkeep

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// maxConfirmed bounds how many addresses of a Node are confirmed. A machine has a
// few; a NodeNetwork takes 64 networks, of which the configuration has some.
const maxConfirmed = 40

// confirmed lists the networks in which a node's own addresses are, sorted: the
// addresses of its Node, each for itself, and the networks of the configuration.
// Where there are such, an address outside of all of them is nobody's: the kubelet
// writes those of a Node, and the configuration is the operator's word. The list is
// never nil.
func confirmed(addresses []corev1.NodeAddress, only []netip.Prefix) []string {
	out := []string{}
	for _, n := range addresses {
		a, err := netip.ParseAddr(n.Address)
		if err != nil || a.Zone() != "" || (n.Type != corev1.NodeInternalIP && n.Type != corev1.NodeExternalIP) {
			continue
		}
		a = a.Unmap()
		within := len(only) == 0 || slices.ContainsFunc(only, func(p netip.Prefix) bool { return p.Contains(a) })
		if a.IsGlobalUnicast() && within {
			out = append(out, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	out = out[:min(len(out), maxConfirmed)]
	for _, p := range only {
		out = append(out, p.Masked().String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addressesChanged is about the addresses of a Node. Its status is written every
// few minutes with nothing else in it.
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
