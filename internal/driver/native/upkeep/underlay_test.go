package upkeep

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestConfirmed(t *testing.T) {
	internal := func(addresses ...string) (out []corev1.NodeAddress) {
		for _, a := range addresses {
			out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return out
	}
	many := []corev1.NodeAddress{}
	for i := range 100 {
		many = append(many, internal(fmt.Sprintf("192.0.2.%d", 1+i))...)
	}
	for _, tc := range []struct {
		name      string
		addresses []corev1.NodeAddress
		only      []string
		want      []string
	}{
		{name: "no address", want: []string{}},
		{name: "both families, in one order", addresses: internal("fd00:77::11", "192.0.2.11", "192.0.2.11"), want: []string{"192.0.2.11/32", "fd00:77::11/128"}},
		{
			name: "an external one, and names",
			addresses: []corev1.NodeAddress{
				{Type: corev1.NodeExternalIP, Address: "198.51.100.7"},
				{Type: corev1.NodeHostName, Address: "192.0.2.99"},
				{Type: corev1.NodeInternalDNS, Address: "192.0.2.98"},
				{Type: "Other", Address: "192.0.2.97"},
			},
			want: []string{"198.51.100.7/32"},
		},
		{
			name:      "what is no node's",
			addresses: internal("127.0.0.1", "::1", "fe80::1", "fe80::1%eth0", "224.0.0.1", "0.0.0.0", "::", "255.255.255.255", "x", "", "192.0.2.0/24"),
			want:      []string{},
		},
		{name: "IPv4 in IPv6", addresses: internal("::ffff:192.0.2.11"), want: []string{"192.0.2.11/32"}},
		{
			name: "a second network, and what a kubelet makes up", addresses: internal("192.0.2.11", "8.8.8.8"), only: []string{"10.20.0.0/16", "192.0.2.0/24"},
			want: []string{"10.20.0.0/16", "192.0.2.0/24", "192.0.2.11/32"},
		},
		{name: "only the networks", addresses: internal("8.8.8.8"), only: []string{"10.20.0.0/16"}, want: []string{"10.20.0.0/16"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var only []netip.Prefix
			for _, s := range tc.only {
				only = append(only, netip.MustParsePrefix(s))
			}
			if diff := cmp.Diff(tc.want, confirmed(addressesOf(having(tc.addresses)), only)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	// A NodeNetwork has room for 64 networks.
	if got := confirmed(addressesOf(having(many)), slices.Repeat([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, 16)); len(got) > 64 {
		t.Errorf("%d networks", len(got))
	}
}

func having(addresses []corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Addresses: addresses}}
}

// A change of the addresses is written also where the configuration's networks decide which are
// confirmed: host ports are at all of them.
func TestNodeAddressesAreWritten(t *testing.T) {
	before, after := v1alpha1.NodeNetworkSpec{}, v1alpha1.NodeNetworkSpec{NodeAddresses: []string{"192.0.2.11"}}
	if sameSpec(before, after) || !sameSpec(after, after) {
		t.Error("a spec without the addresses is left as it is")
	}
}

// An empty underlay replaces an absent one even if this controller confirms no address:
// with an absent one, as earlier versions wrote it, nodes use every address in status.
func TestNothingConfirmedIsWritten(t *testing.T) {
	none, before := v1alpha1.NodeNetworkSpec{Underlay: []string{}}, v1alpha1.NodeNetworkSpec{}
	if sameSpec(before, none) || !sameSpec(none, none) {
		t.Error("a spec without an underlay is left as it is")
	}
}

func TestAddressesChanged(t *testing.T) {
	node := func(addresses ...string) *corev1.Node {
		n := &corev1.Node{}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	for _, tc := range []struct {
		before, after *corev1.Node
		want          bool
	}{
		{node("192.0.2.1"), node("192.0.2.1"), false},
		{node(), node("192.0.2.1"), true},
		{node("192.0.2.1"), node("192.0.2.2"), true},
	} {
		if got := addressesChanged().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%v, then %v: %v", tc.before.Status.Addresses, tc.after.Status.Addresses, got)
		}
	}
}
