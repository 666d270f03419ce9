package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// UnderlayOf returns the addresses that a node has written of itself, as far as
// they can be a node's: those that the controller has confirmed, and those that it
// has not, which are not used.
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

// confirms tells whether the controller has confirmed an address of a node. A
// NodeNetwork that does not say which was written by a controller of a version
// that confirmed none; its node cannot make it so.
func confirms(nn *v1alpha1.NodeNetwork, a netip.Addr) bool {
	return nn.Spec.Underlay == nil || slices.ContainsFunc(nn.Spec.Underlay, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p.Contains(a)
	})
}

// namesAddress tells whether the controller has confirmed this very address of a
// node, not only a network that it is in.
func namesAddress(nn *v1alpha1.NodeNetwork, a netip.Addr) bool {
	return slices.Contains(nn.Spec.Underlay, netip.PrefixFrom(a, a.BitLen()).String())
}

// confirmedOf returns those of this node's addresses that other nodes use. To send from
// another would have no answer.
func confirmedOf(own *v1alpha1.NodeNetwork, addresses []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		if confirms(own, a.Addr()) {
			out = append(out, a)
		}
	}
	return out
}

// unconfirmed says of a node why addresses of it are not used.
func unconfirmed(doubted []netip.Prefix) string {
	names := make([]string, len(doubted))
	for i, p := range doubted {
		names[i] = p.Addr().String()
	}
	return fmt.Sprintf("says that it has the address %s, which neither its Node nor underlayCIDRs in the controller's configuration confirms",
		strings.Join(names, " and "))
}

// confirmedCondition is the condition Confirmed of this node, nil where the
// controller confirms nothing.
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
