package check

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// place is a node of the check.
type place struct {
	name      string
	addresses []netip.Addr // of the node itself, at most one of each family
	network   v1alpha1.NodeNetwork
}

// sample chooses at most limit of the nodes that Fairlead serves and that are ready, spread
// over their names. The same nodes give the same choice. rows name the nodes that are not
// ready; served is the number of all.
func sample(nodes []corev1.Node, networks []v1alpha1.NodeNetwork, limit int) (chosen []place, rows []Row, served int) {
	of := map[string]v1alpha1.NodeNetwork{}
	for _, n := range networks {
		of[n.Name] = n
	}
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	var all []place
	for i := range nodes {
		network, ok := of[nodes[i].Name]
		if !ok {
			continue
		}
		served++
		if !ready(&nodes[i]) {
			rows = append(rows, Row{Test: testPod, From: nodes[i].Name, Result: NotTried, Detail: "the node is not Ready"})
			continue
		}
		all = append(all, place{nodes[i].Name, nodeAddresses(&nodes[i]), network})
	}
	if len(all) <= limit {
		return all, rows, served
	}
	for i := range limit {
		chosen = append(chosen, all[i*len(all)/limit])
	}
	return chosen, rows, served
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// nodeAddresses returns the first internal address of each family.
func nodeAddresses(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if a.Type != corev1.NodeInternalIP || err != nil {
			continue
		}
		if !slices.ContainsFunc(out, func(other netip.Addr) bool { return other.Is4() == addr.Is4() }) {
			out = append(out, addr)
		}
	}
	return out
}
