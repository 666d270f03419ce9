package host

import (
	"net/netip"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// The next pod with an address is reached at once, although the host knows the last pod's
// MAC.
func TestAddressOfTheLastPod(t *testing.T) {
	nettest.NeedIPv6(t)
	for _, address := range []string{"10.244.1.5/32", "fd00:1::5/128"} {
		t.Run(address, func(t *testing.T) {
			k := newHostNode(t)
			state := State{
				Bridge: nettest.DefaultBridge, MTU: 1500,
				Gateways: []netip.Addr{nettest.Addr("169.254.1.1"), nettest.Addr("fe80::1")},
				Local: []LocalBlock{
					{Prefix: nettest.Prefix("10.244.1.0/26"), Source: nettest.Addr("192.0.2.1")},
					{Prefix: nettest.Prefix("fd00:1::/122"), Source: nettest.Addr("fd00:99::1")},
				},
			}
			nettest.Steps(t, k.Sockets, link.AddAddress(1, nettest.Prefix("192.0.2.1/32"), 0), link.AddAddress(1, nettest.Prefix("fd00:99::1/128"), 0))
			if _, err := k.ApplyHost(t.Context(), state); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"first", "second"} {
				pod := nettest.NewNamespace(t)
				if err := kinds.All(k.Sockets).Make(t.Context(), pod, podPlug(id, address)); err != nil {
					t.Fatal(err)
				}
				if err := nettest.Talk(t, k.Namespace(), pod, nettest.Prefix(address).Addr(), time.Second); err != nil {
					t.Errorf("%s pod: %v", id, err)
				}
				if err := unplug(t, k, podPlug(id)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApplyHostUnchanged measures the network part of the sweep each minute: nothing
// to change, on a node with a hundred pods in a cluster of five hundred nodes.
func BenchmarkApplyHostUnchanged(b *testing.B) {
	k := newCable(b, 1)[0]
	state := stateOf(0, 1)
	for i := range 500 {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 2), byte(i << 6)}), 26)
		state.Peers = append(state.Peers, PeerBlock{Prefix: block, Via: netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i%200)})})
	}
	apply(b, k, state)
	for i := range 100 {
		p := numberedPlug(i)
		if err := kinds.All(k.Sockets).Make(b.Context(), nettest.NewNamespace(b), p); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		settled(b, k, state)
	}
}

// A host end whose bridge was removed is put back on the bridge of the default network only
// if it was a port of it. An interface of another bridge would get into the default
// network.
func TestPortOfAnotherBridgeStaysAway(t *testing.T) {
	k := newHostNode(t)
	state := State{Bridge: nettest.DefaultBridge, MTU: 1500}
	if _, err := k.ApplyHost(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	nettest.AddBridge(t, k.Namespace(), "br9", 1500)
	pod, kinds := nettest.NewNamespace(t), kinds.All(k.Sockets)
	own, other := podPlug("c1"), podPlug("c1")
	other.Name, other.Binding = "net1", v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br9"}}
	h := nettest.OpenHandle(t, k.Namespace())
	for _, i := range []plug.Interface{own, other} {
		if err := kinds.Make(t.Context(), pod, i); err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetNoMaster(nettest.LinkNamed(t, k.Namespace(), plug.HostName("c1", i.Name))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.ApplyHost(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	bridge := nettest.LinkNamed(t, k.Namespace(), nettest.DefaultBridge).Attrs().Index
	for name, want := range map[string]int{"eth0": bridge, "net1": 0} {
		if got := nettest.LinkNamed(t, k.Namespace(), plug.HostName("c1", name)).Attrs().MasterIndex; got != want {
			t.Errorf("host end of %s is a port of link %d, want %d", name, got, want)
		}
	}
}
