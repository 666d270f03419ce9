package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
)

func TestLinksOf(t *testing.T) {
	of := func(name, mac string, mtu int32, b v1alpha1.Binding, d *plug.Device) ledger.Interface {
		return ledger.Interface{Interface: v1alpha1.Interface{Name: name, MAC: mac, MTU: mtu, Binding: b}, Made: plug.Made{Device: d}}
	}
	bridge := of("eth0", "0a:58:0a:f4:00:05", 1450, v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{}}, nil)
	ipvlan := of("net1", "", 0, v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{}}, nil)
	device := of("net2", "", 0, v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}, &plug.Device{Name: "eth5", MAC: "02:00:00:00:00:05", MTU: 9000, PCIAddress: "0000:3b:00.1"})
	absent := of("net3", "", 0, v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:00.2"}}, nil)
	inside := map[string]plug.Inspected{
		"eth0": {MAC: "02:00:00:00:00:99", MTU: 1400}, "net1": {MAC: "02:00:00:00:00:01", MTU: 1500}, "net3": {MAC: "02:00:00:00:00:03", MTU: 65536},
	}
	for _, tt := range []struct {
		name   string
		plug   []ledger.Interface
		inside map[string]plug.Inspected
		want   []v1alpha1.SandboxLink
	}{
		{name: "one interface", plug: []ledger.Interface{bridge}, inside: inside},
		{
			name: "from record and namespace", plug: []ledger.Interface{bridge, ipvlan, device, absent}, inside: inside,
			want: []v1alpha1.SandboxLink{
				{Name: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450},
				{Name: "net1", MAC: "02:00:00:00:00:01", MTU: 1500},
				{Name: "net2", MAC: "02:00:00:00:00:05", MTU: 9000, PCIAddress: "0000:3b:00.1"},
				{Name: "net3", MAC: "02:00:00:00:00:03", PCIAddress: "0000:3b:00.2"}, // an MTU that the API refuses
			},
		},
		{
			name: "the namespace cannot be read", plug: []ledger.Interface{bridge, ipvlan},
			want: []v1alpha1.SandboxLink{{Name: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450}, {Name: "net1"}},
		},
	} {
		got := linksOf(&ledger.Record{Adds: []ledger.Add{{State: ledger.Attached, Interfaces: tt.plug}}}, tt.inside)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if got := linksOf(&ledger.Record{}, nil); got != nil {
		t.Errorf("no interface: %+v", got)
	}
}
