package plug

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// onBridgeBinding is an interface net1 without addresses on a bridge.
func onBridgeBinding(containerID string, b v1alpha1.BridgeBinding) Interface {
	return Interface{ContainerID: containerID, Name: "net1", MTU: 1400, Binding: v1alpha1.Binding{Bridge: &b}}
}

// A bridge is made by the first pod that needs it, and stays. Many pods may come at once.
func TestBridgeIsCreated(t *testing.T) {
	k := newPlugHost(t)
	var pods sync.WaitGroup
	for n := range 8 {
		pod := nettest.NewNamespace(t)
		i := onBridgeBinding("c"+string(rune('0'+n)), v1alpha1.BridgeBinding{Name: "br1", Create: true, Addresses: []string{"192.0.2.1/24", "fd00::1/64"}, Promiscuous: true})
		if n%2 == 1 {
			i.MTU = 0
		}
		pods.Go(func() {
			if err := k.Make(t.Context(), pod, i); err != nil {
				t.Error(err)
				return
			}
			if got := nettest.LinkNamed(t, pod, "net1").Attrs().MTU; i.MTU > 0 && got != 1400 || got != 1400 && got != defaultMTU {
				t.Errorf("MTU %d of an interface with %d", got, i.MTU)
			}
			if err := k.Remove(t.Context(), k.Plan(pod.Place(), i)); err != nil {
				t.Error(err)
			}
		})
	}
	pods.Wait()
	br := nettest.LinkNamed(t, k.Namespace(), "br1")
	if a := br.Attrs(); a.Flags&net.FlagUp == 0 || a.Promisc != 1 || a.MTU != 1400 && a.MTU != defaultMTU {
		t.Errorf("bridge %+v", a)
	}
	ips, err := nettest.PodIPs(k.Namespace(), "br1")
	if err != nil || len(ips) != 2 {
		t.Errorf("addresses of the bridge %v, %v", ips, err)
	}
	// A bridge that is there keeps its settings.
	pod := nettest.NewNamespace(t)
	nettest.Must(t, k.Make(t.Context(), pod, onBridgeBinding("c9", v1alpha1.BridgeBinding{Name: nettest.DefaultBridge, Create: true})))
	if got := nettest.LinkNamed(t, k.Namespace(), nettest.DefaultBridge).Attrs().MTU; got != 1500 {
		t.Errorf("MTU %d of a bridge that was there", got)
	}
}

func TestBridgeIsRefused(t *testing.T) {
	k := newPlugHost(t)
	nettest.AddDevice(t, k.Sockets, "eth5")
	pod := nettest.NewNamespace(t)
	before := nettest.LinkNames(t, k.Namespace())
	for _, tt := range []struct {
		b    v1alpha1.BridgeBinding
		is   error
		says string
	}{
		{v1alpha1.BridgeBinding{Name: "br9"}, link.ErrNoBridge, "br9"},
		{v1alpha1.BridgeBinding{Name: "br9", Promiscuous: true}, link.ErrNoBridge, "br9"},
		{v1alpha1.BridgeBinding{Name: "eth5", Create: true}, link.ErrExists, "eth5 is a veth, and must be a bridge"},
		{v1alpha1.BridgeBinding{Name: "br9", Addresses: []string{"192.0.2.1"}}, link.ErrInvalid, `address "192.0.2.1" of bridge br9`},
		{v1alpha1.BridgeBinding{Name: "br9", VLAN: 4095}, link.ErrInvalid, "VLAN 4095 on bridge br9 must be 0 to 4094"},
		{v1alpha1.BridgeBinding{Name: "br9", SourceCheck: v1alpha1.SourceMAC, Trunk: []v1alpha1.VLANRange{{Min: 7, Max: 5}}}, link.ErrInvalid, "trunk VLAN 5 on bridge br9 must be 7 to 4094"},
		{v1alpha1.BridgeBinding{Name: nettest.DefaultBridge, VLAN: 100}, link.ErrInvalid, "the bridge does not distinguish VLANs (ip link set fairlead0 type bridge vlan_filtering 1)"},
	} {
		if err := k.Make(t.Context(), pod, onBridgeBinding("c1", tt.b)); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want %v with %q", tt.b, err, tt.is, tt.says)
		}
	}
	if after := nettest.LinkNames(t, k.Namespace()); strings.Join(before, " ") != strings.Join(after, " ") {
		t.Errorf("links of the host %v, want %v", after, before)
	}
}

// The settings of a port survive a repair.
func TestPortSettings(t *testing.T) {
	for name, b := range map[string]v1alpha1.BridgeBinding{
		"default":    {},
		"no hairpin": {NoHairpin: true},
		"isolated":   {Isolated: true},
		"both":       {NoHairpin: true, Isolated: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, pod := newPlugHost(t), nettest.NewNamespace(t)
			b.Name = nettest.DefaultBridge
			i := onBridgeBinding("c1", b)
			nettest.Must(t, k.Make(t.Context(), pod, i))
			m := k.Plan(pod.Place(), i)
			h := nettest.OpenHandle(t, k.Namespace())
			want := func(when string) {
				t.Helper()
				got, err := h.LinkGetProtinfo(nettest.LinkNamed(t, k.Namespace(), m.HostLink))
				nettest.Must(t, err)
				if got.Hairpin == b.NoHairpin || got.Isolated != b.Isolated {
					t.Errorf("%s: port %v", when, got)
				}
			}
			want("Make")
			nettest.Must(t, h.LinkSetNoMaster(nettest.LinkNamed(t, k.Namespace(), m.HostLink)))
			if repaired, err := k.Repair(t.Context(), m); !repaired || err != nil {
				t.Errorf("Repair: %t, %v", repaired, err)
			}
			want("Repair")
		})
	}
}

// A port is in the VLANs of its binding alone.
func TestPortVLANs(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	i := onBridgeBinding("c1", v1alpha1.BridgeBinding{
		Name: "br1", Create: true, VLAN: 100, SourceCheck: v1alpha1.SourceMAC, Trunk: []v1alpha1.VLANRange{{Min: 7, Max: 9}, {Min: 20, Max: 20}},
	})
	err := k.Make(t.Context(), pod, i)
	if errors.Is(err, link.ErrInvalid) && strings.Contains(err.Error(), "this kernel has no bridges that distinguish VLANs") {
		if names := nettest.LinkNames(t, k.Namespace()); strings.Join(names, " ") != nettest.DefaultBridge+" lo" {
			t.Errorf("links of the host after the refusal: %v", names)
		}
		nettest.Missing(t, "needs a kernel with bridges that distinguish VLANs: %v", err)
	}
	nettest.Must(t, err)
	m := k.Plan(pod.Place(), i)
	h := nettest.OpenHandle(t, k.Namespace())
	want := func(when string) {
		t.Helper()
		all, err := h.BridgeVlanList()
		nettest.Must(t, err)
		got := map[uint16]bool{}
		for _, v := range all[int32(nettest.LinkNamed(t, k.Namespace(), m.HostLink).Attrs().Index)] { //nolint:gosec // an index
			got[v.Vid] = v.PortVID()
		}
		if len(got) != 5 || !got[100] || got[7] || got[8] || got[9] || got[20] {
			t.Errorf("%s: VLANs of the port, true for untagged: %v", when, got)
		}
		for _, id := range []uint16{7, 8, 9, 20} {
			if _, ok := got[id]; !ok {
				t.Errorf("%s: VLAN %d is missing", when, id)
			}
		}
	}
	want("Make")
	nettest.Must(t, h.LinkSetNoMaster(nettest.LinkNamed(t, k.Namespace(), m.HostLink)))
	if repaired, err := k.Repair(t.Context(), m); !repaired || err != nil {
		t.Errorf("Repair: %t, %v", repaired, err)
	}
	want("Repair")
}

// An interface without MTU has that of its bridge.
func TestMTUOfBridge(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	i := onBridgeBinding("c1", v1alpha1.BridgeBinding{Name: nettest.DefaultBridge})
	i.MTU = 0
	nettest.Must(t, k.Make(t.Context(), pod, i))
	for _, l := range []netlink.Link{nettest.LinkNamed(t, pod, "net1"), nettest.LinkNamed(t, k.Namespace(), HostName("c1", "net1"))} {
		if got := l.Attrs().MTU; got != 1500 {
			t.Errorf("MTU %d of %s, want that of the bridge", got, l.Attrs().Name)
		}
	}
}
