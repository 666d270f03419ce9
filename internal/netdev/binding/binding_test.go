package binding_test

import (
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/binding"
	"fairlead.dev/fairlead/test/nettest"
)

// Kinds whose interfaces have the MAC of another link get no random one.
func TestRandomMAC(t *testing.T) {
	kinds := binding.Kinds(nettest.NewNode(t))
	for _, tt := range []struct {
		name string
		b    v1alpha1.Binding
		want bool
	}{
		{"bridge", v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{}}, true},
		{"macvlan", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}, true},
		{"macvlan passthru", v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "passthru"}}, false},
		{"ipvlan", v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "p0", Mode: "l2"}}, false},
		{"vlan", v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: "p0", ID: 5}}, false},
		{"hostDevice", v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}, false},
		{"nothing", v1alpha1.Binding{}, false},
	} {
		if got := kinds.RandomMAC(tt.b); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// Interfaces with a link on the host can all be found there. A device is found only after
// it came back.
func TestFinds(t *testing.T) {
	kinds := binding.Kinds(nettest.NewNode(t))
	for name, b := range map[string]v1alpha1.Binding{
		"macvlan": {Macvlan: &v1alpha1.MacvlanBinding{Parent: "p0", Mode: "bridge"}}, "ipvlan": {IPVLAN: &v1alpha1.IPVLANBinding{Parent: "p0", Mode: "l2"}}, "vlan": {VLAN: &v1alpha1.VLANBinding{Parent: "p0", ID: 5}}, "addressOnly": {AddressOnly: &v1alpha1.AddressOnlyBinding{}},
		"hostDevice": {HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}, "nothing": {},
	} {
		if kinds.Finds(b) {
			t.Errorf("%s: every interface is said to be found", name)
		}
	}
	if !kinds.Finds(v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1"}}) {
		t.Error("bridge: not every interface is said to be found")
	}
}
