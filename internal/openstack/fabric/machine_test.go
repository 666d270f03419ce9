package fabric

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

func TestMachineID(t *testing.T) {
	for in, want := range map[string]string{
		"openstack:///9b2e6f4e-1a2b": "9b2e6f4e-1a2b", "openstack://RegionOne/9b2e6f4e-1a2b": "9b2e6f4e-1a2b",
		"": "", "9b2e6f4e-1a2b": "", "aws:///i-0": "", "openstack://9b2e6f4e-1a2b": "", "openstack:///": "",
		"openstack:///a/b": "", "openstack:///a?device_id=b": "", "aws:///zone/i-1": "", "openstack:///" + strings.Repeat("a", 65): "",
	} {
		if got := MachineID(in); got != want {
			t.Errorf("MachineID(%q) = %q, want %q", in, got, want)
		}
	}
}

// list is a cloud with ports.
type list []cloud.Port

func (l list) Ports(_ context.Context, q cloud.PortQuery) (out []cloud.Port, err error) {
	for _, p := range l {
		has := !q.Address.IsValid() || slices.ContainsFunc(p.Addresses, func(a cloud.Address) bool { return a.Addr == q.Address })
		if has && (q.DeviceID == "" || p.DeviceID == q.DeviceID) {
			out = append(out, p)
		}
	}
	return out, nil
}

func TestMachinePort(t *testing.T) {
	at := func(id, device string, addresses ...string) cloud.Port {
		p := cloud.Port{ID: id, DeviceID: device}
		for _, a := range addresses {
			p.Addresses = append(p.Addresses, cloud.Address{Addr: netip.MustParseAddr(a)})
		}
		return p
	}
	all := list{at("a", "m1", "10.0.0.1", "fd00::1"), at("b", "m1", "10.1.0.1"), at("c", "m2", "10.0.0.2"), at("d", "m3", "10.0.0.1")}
	for _, tc := range []struct{ name, machine, addresses, want, err string }{
		{name: "machine and address", machine: "m1", addresses: "10.1.0.1", want: "b"},
		{name: "the first address of several ports", machine: "m1", addresses: "10.0.0.1 10.1.0.1", want: "a"},
		{name: "the other order", machine: "m1", addresses: "10.1.0.1 10.0.0.1", want: "b"},
		{name: "both families", machine: "m1", addresses: "10.0.0.1 fd00::1", want: "a"},
		{name: "address alone", addresses: "10.0.0.2", want: "c"},
		{name: "an address of two machines", addresses: "10.0.0.1", err: "2 ports have an address"},
		{name: "an address of another machine", machine: "m1", addresses: "10.0.0.2", err: "machine m1 has no port with an address of [10.0.0.2]"},
		{name: "no address", machine: "m1", err: "no port"},
		{name: "nothing", err: "no port that the credentials show"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var addresses []netip.Addr
			for a := range strings.FieldsSeq(tc.addresses) {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			got, err := MachinePort(t.Context(), all, tc.machine, addresses)
			if got.ID != tc.want || (err != nil) != (tc.err != "") || err != nil && (!errors.Is(err, ErrNoPort) || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%q, %v; want %q, %q", got.ID, err, tc.want, tc.err)
			}
		})
	}
}

func TestRival(t *testing.T) {
	node := func(name, machine, address string, created int64) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(created, 0)}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: address}}
		if machine != "" {
			n.Spec.ProviderID = "openstack:///" + machine
		}
		return n
	}
	all := []corev1.Node{
		node("b", "m1", "10.0.0.1", 5), node("a", "m1", "10.0.0.9", 6), node("c", "m2", "10.0.0.2", 5),
		node("d", "", "10.0.0.2", 9), node("e", "", "10.0.0.3", 4), node("f", "", "10.0.0.3", 4),
	}
	want := map[string]string{"a": "b", "d": "c", "f": "e"}
	for i := range all {
		if got := Rival(&all[i], all); got != want[all[i].Name] {
			t.Errorf("rival of %s: %q, want %q", all[i].Name, got, want[all[i].Name])
		}
	}
}
