package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
)

// UnderlayOf returns the addresses that a node has written into its status: believed are
// confirmed by the controller, doubted are not and are not used. It leaves out text that
// cannot be parsed, and addresses that no node can have.
func UnderlayOf(nn *v1alpha1.NodeNetwork) (believed, doubted []netip.Prefix) {
	for _, s := range nn.Status.Addresses {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p.Addr().Is4In6() || !p.Addr().IsGlobalUnicast():
		case confirms(nn, p.Addr()):
			believed = append(believed, p)
		default:
			doubted = append(doubted, p)
		}
	}
	return believed, doubted
}

// ownAddresses returns the addresses of this node at which its pods have host ports: those of its
// uplink, those of its Node, and 127.0.0.1.
func ownAddresses(own *v1alpha1.NodeNetwork, up host.Uplink) []netip.Addr {
	out := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	for _, p := range up.Addresses {
		out = append(out, p.Addr())
	}
	for _, s := range own.Spec.NodeAddresses {
		if a, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// confirms reports whether the controller has confirmed an address of a node. Without
// spec.underlay every address counts as confirmed: the NodeNetwork was written by a version
// of the controller that confirmed none. A node cannot remove spec.underlay.
func confirms(nn *v1alpha1.NodeNetwork, a netip.Addr) bool {
	return nn.Spec.Underlay == nil || slices.ContainsFunc(nn.Spec.Underlay, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p.Contains(a)
	})
}

// namesAddress reports whether the controller has confirmed this very address of a node,
// not only a network that contains it.
func namesAddress(nn *v1alpha1.NodeNetwork, a netip.Addr) bool {
	return slices.Contains(nn.Spec.Underlay, netip.PrefixFrom(a, a.BitLen()).String())
}

// confirmedOf returns the confirmed addresses of this node, which are the ones that other
// nodes use. Packets from any other address would get no answer.
func confirmedOf(own *v1alpha1.NodeNetwork, addresses []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		if confirms(own, a.Addr()) {
			out = append(out, a)
		}
	}
	return out
}

// unconfirmed returns the reason why addresses of a node are not used, without the node's
// name.
func unconfirmed(doubted []netip.Prefix) string {
	names := make([]string, len(doubted))
	for i, p := range doubted {
		names[i] = p.Addr().String()
	}
	return fmt.Sprintf("says that it has the address %s, which neither its Node nor underlayCIDRs in the controller's configuration confirms",
		strings.Join(names, " and "))
}

// confirmedCondition returns the condition Confirmed of this node, nil if the controller
// confirms no addresses at all or the node has none.
func confirmedCondition(own *v1alpha1.NodeNetwork, addresses []netip.Prefix) *metav1.Condition {
	if own.Spec.Underlay == nil || len(addresses) == 0 {
		return nil
	}
	good := confirmedOf(own, addresses)
	bad := slices.DeleteFunc(slices.Clone(addresses), func(p netip.Prefix) bool { return slices.Contains(good, p) })
	c := &metav1.Condition{Type: v1alpha1.ConditionConfirmed, Status: metav1.ConditionTrue, Reason: "Confirmed", Message: "other nodes use the addresses of this one"}
	switch {
	case len(good) == 0:
		c.Status, c.Reason = metav1.ConditionFalse, "NotConfirmed"
		c.Message = "other nodes do not reach pods here: this node " + unconfirmed(bad)
	case len(bad) > 0:
		c.Reason, c.Message = "PartlyConfirmed", "other nodes use one address of this node; it "+unconfirmed(bad)
	}
	return c
}
