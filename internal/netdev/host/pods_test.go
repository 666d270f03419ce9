package host

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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
				IPv4: true, IPv6: true,
				Local:   []netip.Prefix{nettest.Prefix("10.244.1.0/26"), nettest.Prefix("fd00:1::/122")},
				Sources: []netip.Addr{nettest.Addr("192.0.2.1"), nettest.Addr("fd00:99::1")},
			}
			nettest.Steps(t, k.Sockets, link.AddAddress(1, nettest.Prefix("192.0.2.1/32"), 0), link.AddAddress(1, nettest.Prefix("fd00:99::1/128"), 0))
			if _, err := k.ApplyHost(t.Context(), state); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"first", "second"} {
				pod := nettest.NewNamespace(t)
				if err := kindsOf(k).Make(t.Context(), pod, podPlug(id, address)); err != nil {
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
		if err := kindsOf(k).Make(b.Context(), nettest.NewNamespace(b), p); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		settled(b, k, state)
	}
}

// The node sends to its pods from the present address of the family, also to those plugged before it
// changed: the kernel removes IPv4 routes whose source is no address any more.
func TestSourcesFollowAddresses(t *testing.T) {
	k := newCable(t, 1)[0]
	state := stateOf(0, 1)
	apply(t, k, state)
	pod := nettest.NewNamespace(t)
	p := podPlug("c1", "10.244.1.5/32", "fd00:1:1::5/128")
	kinds := kindsOf(k)
	nettest.Must(t, kinds.Make(t.Context(), pod, p))
	m, err := kinds.Plan(pod.Place(), p)
	nettest.Must(t, err)
	h := nettest.OpenHandle(t, k.Namespace())
	up := nettest.LinkNamed(t, k.Namespace(), "up0")
	renumber := map[netip.Prefix]netip.Prefix{
		nettest.Prefix("192.0.2.1/24"): nettest.Prefix("192.0.2.77/24"), nettest.Prefix("fd00:99::1/64"): nettest.Prefix("fd00:99::77/64"),
	}
	for from, to := range renumber {
		nettest.Must(t, h.AddrDel(up, &netlink.Addr{IPNet: link.ToIPNet(from)}))
		nettest.Steps(t, k.Sockets, link.AddAddress(up.Attrs().Index, to, netlink.SCOPE_UNIVERSE))
		for i, a := range state.Sources {
			if a == from.Addr() {
				state.Sources[i] = to.Addr()
			}
		}
	}
	apply(t, k, state)
	if did, err := kinds.Repair(t.Context(), m); err != nil || !did {
		t.Errorf("repaired: %v, %v", did, err)
	}
	if did, err := kinds.Repair(t.Context(), m); err != nil || did {
		t.Errorf("repaired again: %v, %v", did, err)
	}
	for _, a := range p.Addresses {
		routes, err := h.RouteGet(a.Addr().AsSlice())
		if err != nil || len(routes) != 1 {
			t.Fatalf("routes to %v: %v, %v", a, routes, err)
		}
		if source, _ := netip.AddrFromSlice(routes[0].Src); source.Unmap() != k.Source(a.Addr().Is4()) {
			t.Errorf("to %v from %v, want %v", a, source, k.Source(a.Addr().Is4()))
		}
		nettest.Reaches(t, k.Namespace(), pod, a.Addr())
	}
}

// A node that loses its IPv4 address, or never had one, reaches its IPv4 pods, and they each other.
func TestPodsWithoutAnAddressOfTheNode(t *testing.T) {
	k := newCable(t, 1)[0]
	with := stateOf(0, 1)
	apply(t, k, with)
	kinds := kindsOf(k)
	var pods []*link.Namespace
	var made []plug.Made
	plugged := func(id, address string) {
		t.Helper()
		p := podPlug(id, address)
		ns := nettest.NewNamespace(t)
		nettest.Must(t, kinds.Make(t.Context(), ns, p))
		m, err := kinds.Plan(ns.Place(), p)
		nettest.Must(t, err)
		pods, made = append(pods, ns), append(made, m)
	}
	plugged("c1", "10.244.1.5/32")
	h := nettest.OpenHandle(t, k.Namespace())
	up := nettest.LinkNamed(t, k.Namespace(), "up0")
	nettest.Must(t, h.AddrDel(up, &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("192.0.2.1/24"))}))
	without := with
	without.Sources = []netip.Addr{nettest.Addr("fd00:99::1")}
	if changes := apply(t, k, without); !slices.Contains(changes, "added address 192.0.0.8 to lo") {
		t.Errorf("changes: %q", changes)
	}
	settled(t, k, without)
	plugged("c2", "10.244.1.6/32")
	repaired := func(when string, n int) {
		t.Helper()
		if did, err := kinds.Repair(t.Context(), made[n]); err != nil || !did {
			t.Errorf("%s: pod %d is repaired: %v, %v", when, n, did, err)
		}
	}
	repaired("without the address", 0)
	reached := func() {
		t.Helper()
		for n, a := range []string{"10.244.1.5", "10.244.1.6"} {
			nettest.Reaches(t, k.Namespace(), pods[n], nettest.Addr(a))
			nettest.Reaches(t, pods[1-n], pods[n], nettest.Addr(a))
		}
	}
	reached()
	nettest.Steps(t, k.Sockets, link.AddAddress(up.Attrs().Index, nettest.Prefix("192.0.2.1/24"), netlink.SCOPE_UNIVERSE))
	apply(t, k, with)
	for n := range made {
		repaired("with the address again", n)
	}
	reached()
	cleansUp(t, k)
}

// An address that the kernel still compares with those of others is no source.
func TestTentativeSource(t *testing.T) {
	k := newCable(t, 1)[0]
	nettest.In(t, k.Namespace(), func() error {
		_, err := link.SetSysctl("net/ipv6/conf/up0/dad_transmits", "30")
		return err
	})
	h := nettest.OpenHandle(t, k.Namespace())
	up := nettest.LinkNamed(t, k.Namespace(), "up0")
	address := &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("fd00:99::1/64"))}
	nettest.Must(t, h.AddrDel(up, address))
	nettest.Must(t, h.AddrAdd(up, address))
	u, err := k.Uplink(t.Context(), "up0")
	if err != nil || len(u.Addresses) != 2 || !slices.Equal(u.Sources, []netip.Addr{nettest.Addr("192.0.2.1")}) {
		t.Fatalf("uplink %+v, %v", u, err)
	}
	state := stateOf(0, 1)
	state.Sources = u.Sources
	apply(t, k, state)
	pod := nettest.NewNamespace(t)
	nettest.Must(t, kindsOf(k).Make(t.Context(), pod, podPlug("c1", "fd00:1:1::5/128")))
	nettest.Reaches(t, k.Namespace(), pod, nettest.Addr("fd00:1:1::5"))
}

// The bridge of an earlier version goes when it has no ports. Pods on it are named, and stay.
func TestFormerBridge(t *testing.T) {
	k := newHostNode(t)
	h := nettest.OpenHandle(t, k.Namespace())
	nettest.AddBridge(t, k.Namespace(), formerBridge, 1500)
	state := State{IPv4: true}
	if changes := strings.Join(apply(t, k, state), "\n"); strings.Contains(changes, formerBridge) {
		t.Errorf("a bridge of another program: %s", changes)
	}
	nettest.Must(t, h.LinkSetAlias(nettest.LinkNamed(t, k.Namespace(), formerBridge), bridgeAlias))
	nettest.AddCable(t, k.Namespace(), "port", nettest.LinkNamed(t, k.Namespace(), formerBridge).Attrs().Index, nettest.Cable{To: nettest.NewNamespace(t), Name: "eth0", MTU: 1500})
	if _, err := k.ApplyHost(t.Context(), state); err == nil || !strings.Contains(err.Error(), "1 pods of an earlier version") {
		t.Errorf("with a pod: %v", err)
	}
	nettest.Must(t, h.LinkDel(nettest.LinkNamed(t, k.Namespace(), "port")))
	if changes := apply(t, k, state); !slices.Contains(changes, "removed bridge fairlead0 of an earlier version") {
		t.Errorf("without: %q", changes)
	}
	settled(t, k, state)
}
