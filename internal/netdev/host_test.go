package netdev

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newCable makes nodes whose uplinks share a link: node i has 192.0.2.i/24 and
// fd00:99::i/64, counted from 1.
func newCable(tb testing.TB, count int) []*Kernel {
	tb.Helper()
	needIPv6(tb)
	return newCableOf(tb, count, netip.Addr.Is4, netip.Addr.Is6)
}

// newCableOf is newCable with addresses of these families.
func newCableOf(tb testing.TB, count int, families ...func(netip.Addr) bool) []*Kernel {
	tb.Helper()
	middle := newHost(tb) // the switch
	var nodes []*Kernel
	for i := range count {
		k := newNode(tb)
		name := []string{"port1", "port2", "port3"}[i]
		bridge := linkNamed(tb, middle.host, DefaultBridge).Attrs().Index
		steps(tb, middle, create(pair{
			host: name, hostMAC: RandomMAC(), bridge: bridge,
			peer: "up0", peerMAC: RandomMAC(), mtu: 1450, namespace: k.host.fd,
		}))
		index := linkNamed(tb, k.host, "up0").Attrs().Index
		steps(tb, k, raise("up0"))
		for _, of := range families {
			bits := 24
			if own := nodeIP(i, of); own.Is6() {
				bits = 64
			}
			steps(tb, k, addAddress(index, netip.PrefixFrom(nodeIP(i, of), bits), netlink.SCOPE_UNIVERSE))
		}
		nodes = append(nodes, k)
	}
	return nodes
}

func nodeIP(i int, of func(netip.Addr) bool) netip.Addr {
	v4, v6 := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), mustAddr("fd00:99::").As16()
	if of(v4) {
		return v4
	}
	v6[15] = byte(i + 1)
	return netip.AddrFrom16(v6)
}

// blocksOf are the blocks of a node, of both families.
func blocksOf(i int) []netip.Prefix {
	v6 := mustAddr("fd00:1::").As16()
	v6[5] = byte(i + 1)
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 26),
		netip.PrefixFrom(netip.AddrFrom16(v6), 122),
	}
}

// stateOf is what node i of so many needs.
func stateOf(i, count int) HostState {
	s := HostState{
		Bridge: DefaultBridge, Uplink: "up0",
		Gateways: []netip.Addr{mustAddr("169.254.1.1"), mustAddr("fe80::1")},
	}
	for node := range count {
		for _, block := range blocksOf(node) {
			of := netip.Addr.Is4
			if block.Addr().Is6() {
				of = netip.Addr.Is6
			}
			if node == i {
				s.Local = append(s.Local, LocalBlock{Prefix: block, Source: nodeIP(node, of)})
			} else {
				s.Peers = append(s.Peers, PeerBlock{Prefix: block, Via: nodeIP(node, of)})
			}
		}
	}
	return s
}

func apply(tb testing.TB, k *Kernel, s HostState) []string {
	tb.Helper()
	changes, err := k.ApplyHost(tb.Context(), s)
	if err != nil {
		tb.Fatal(err)
	}
	return changes
}

// settled asserts that the host is as the state says.
func settled(tb testing.TB, k *Kernel, s HostState) {
	tb.Helper()
	if changes := apply(tb, k, s); len(changes) != 0 {
		tb.Errorf("applied again, it changes:\n%s", strings.Join(changes, "\n"))
	}
}

// Pods of two nodes reach each other, their neighbours, and both nodes.
func TestNodesOnOneLink(t *testing.T) {
	nodes := newCable(t, 2)
	type pod struct {
		node int
		ns   *Namespace
		ips  []netip.Addr
	}
	var pods []pod
	for n, k := range nodes {
		apply(t, k, stateOf(n, 2))
		settled(t, k, stateOf(n, 2))
		for p := range 2 {
			var addresses []string
			var ips []netip.Addr
			for _, block := range blocksOf(n) {
				ip := block.Addr()
				for range p + 5 {
					ip = ip.Next()
				}
				addresses, ips = append(addresses, netip.PrefixFrom(ip, ip.BitLen()).String()), append(ips, ip)
			}
			ns := newNamespace(t)
			plug := plugFor(strings.Repeat("x", p+1), addresses...)
			plug.MTU = 1450
			if _, err := k.Attach(t.Context(), ns, plug); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, pod{n, ns, ips})
		}
		settled(t, k, stateOf(n, 2))
	}
	for _, from := range pods {
		for _, to := range pods {
			for _, ip := range to.ips {
				reaches(t, from.ns, to.ns, ip)
			}
		}
		for n, k := range nodes {
			reaches(t, from.ns, k.host, nodeIP(n, netip.Addr.Is4))
			reaches(t, from.ns, k.host, nodeIP(n, netip.Addr.Is6))
			for _, ip := range from.ips {
				reaches(t, k.host, from.ns, ip)
			}
		}
		reaches(t, from.ns, nodes[from.node].host, mustAddr("169.254.1.1"))
	}
	for _, k := range nodes {
		if _, err := k.CleanupHost(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"lo", "up0"}, linkNames(t, k.host)); diff != "" {
			t.Errorf("links after cleanup (-want +got):\n%s", diff)
		}
		if routes, err := ourRoutes(t.Context(), openHandle(t, k.host)); err != nil || len(routes) != 0 {
			t.Errorf("routes after cleanup: %v, %v", routes, err)
		}
		if removed, err := k.CleanupHost(t.Context()); err != nil || len(removed) != 0 {
			t.Errorf("cleanup again: %v, %v", removed, err)
		}
	}
}

// What ApplyHost does to an empty node, in its own words.
func TestApplyHostSays(t *testing.T) {
	k := newCable(t, 1)[0]
	state := stateOf(0, 2)
	in(t, k.host, func() error {
		for name, value := range map[string]string{
			"net/ipv4/ip_forward": "0", "net/ipv4/conf/up0/forwarding": "0", "net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/up0/accept_ra": "1",
			"net/ipv4/conf/all/send_redirects": "1", "net/ipv4/conf/default/send_redirects": "1",
			"net/ipv6/conf/default/accept_ra": "1", "net/ipv6/conf/default/accept_dad": "1",
		} {
			if _, err := setSysctl(name, value); err != nil {
				return err
			}
		}
		return nil
	})
	got := apply(t, k, state)
	want := []string{
		"created bridge fairlead0 (mac " + bridgeMAC(DefaultBridge).String() + ", mtu 1450)",
		"set net/ipv4/conf/fairlead0/forwarding from 0 to 1",
		"set net/ipv4/conf/fairlead0/send_redirects from 1 to 0",
		"set net/ipv4/conf/up0/forwarding from 0 to 1",
		"set net/ipv4/conf/all/send_redirects from 1 to 0",
		"set net/ipv6/conf/fairlead0/accept_ra from 1 to 0",
		"set net/ipv6/conf/fairlead0/accept_dad from 1 to 0",
		"set net/ipv6/conf/up0/accept_ra from 1 to 2",
		"set net/ipv6/conf/all/forwarding from 0 to 1",
		"set fairlead0 up",
		"added address 169.254.1.1/32 to fairlead0",
		"added address fe80::1/64 to fairlead0",
		"added route to 10.244.1.0/26 dev fairlead0",
		"added route to fd00:1:1::/122 dev fairlead0",
		"added route to 10.244.2.0/26 via 192.0.2.2 dev up0",
		"added route to fd00:1:2::/122 via fd00:99::2 dev up0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	settled(t, k, state)

	state.Peers = state.Peers[1:]
	state.Gateways = state.Gateways[1:]
	want = []string{
		"removed address 169.254.1.1/32 from fairlead0",
		"removed route to 10.244.2.0/26 via 192.0.2.2",
		// The kernel drops a link's IPv4 routes with its last address.
		"added route to 10.244.1.0/26 dev fairlead0",
	}
	got = apply(t, k, state)
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], " on link")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes by less (-want +got):\n%s", diff)
	}
	settled(t, k, state)
}

// Whatever is done to the host is put right, and said.
func TestApplyHostMends(t *testing.T) {
	k := newCable(t, 1)[0]
	bridge := func(h *netlink.Handle) netlink.Link {
		l, err := h.LinkByName(DefaultBridge)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	tests := []struct {
		name string
		harm func(h *netlink.Handle) error
		says string
	}{
		{"bridge deleted", func(h *netlink.Handle) error { return h.LinkDel(bridge(h)) }, "created bridge fairlead0"},
		{"bridge down", func(h *netlink.Handle) error { return h.LinkSetDown(bridge(h)) }, "set fairlead0 up"},
		{"bridge mtu", func(h *netlink.Handle) error { return h.LinkSetMTU(bridge(h), 1300) }, "set the mtu of fairlead0 from 1300 to 1450"},
		{"bridge mac", func(h *netlink.Handle) error {
			return h.LinkSetHardwareAddr(bridge(h), net.HardwareAddr{2, 0, 0, 0, 0, 1})
		}, "set the mac of fairlead0 from 02:00:00:00:00:01"},
		{"bridge alias", func(h *netlink.Handle) error { return h.LinkSetAlias(bridge(h), "") }, "marked bridge fairlead0 as ours"},
		{"gateway deleted", func(h *netlink.Handle) error {
			return h.AddrDel(bridge(h), &netlink.Addr{IPNet: toIPNet(mustPrefix("169.254.1.1/32"))})
		}, "added address 169.254.1.1/32"},
		{"IPv6 gateway deleted", func(h *netlink.Handle) error {
			return h.AddrDel(bridge(h), &netlink.Addr{IPNet: toIPNet(mustPrefix("fe80::1/64"))})
		}, "added address fe80::1/64"},
		{"foreign address", func(h *netlink.Handle) error {
			return h.AddrAdd(bridge(h), &netlink.Addr{IPNet: toIPNet(mustPrefix("198.51.100.1/24"))})
		}, "removed address 198.51.100.1/24"},
		{"own route deleted", func(h *netlink.Handle) error {
			return dropRoute(t, h, blocksOf(0)[0])
		}, "added route to 10.244.1.0/26"},
		{"peer's route deleted", func(h *netlink.Handle) error {
			return dropRoute(t, h, blocksOf(1)[1])
		}, "added route to fd00:1:2::/122"},
		{"peer's route elsewhere", func(h *netlink.Handle) error {
			return h.RouteReplace(&netlink.Route{Dst: toIPNet(blocksOf(1)[0]), Gw: net.IPv4(192, 0, 2, 77), Protocol: RouteProtocol})
		}, "added route to 10.244.2.0/26 via 192.0.2.2"},
		{"own route without source", func(h *netlink.Handle) error {
			return h.RouteReplace(&netlink.Route{Dst: toIPNet(blocksOf(0)[0]), LinkIndex: bridge(h).Attrs().Index, Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
		}, "added route to 10.244.1.0/26"},
		{"stray route", func(h *netlink.Handle) error {
			return h.RouteAdd(&netlink.Route{Dst: toIPNet(mustPrefix("10.244.9.0/26")), Gw: net.IPv4(192, 0, 2, 9), Protocol: RouteProtocol})
		}, "removed route to 10.244.9.0/26"},
		{"uplink down and up", func(h *netlink.Handle) error {
			up, err := h.LinkByName("up0")
			return errors.Join(err, h.LinkSetDown(up), h.LinkSetUp(up))
		}, "added route to 10.244.2.0/26"},
		// As "sysctl --system" does: the kernel tells nobody.
		{"accept_ra set back", func(*netlink.Handle) error {
			return k.inHost(func() error {
				_, err := setSysctl("net/ipv6/conf/up0/accept_ra", "1")
				return err
			})
		}, "set net/ipv6/conf/up0/accept_ra from 1 to 2"},
	}
	state := stateOf(0, 2)
	apply(t, k, state)
	pod := newNamespace(t)
	plugged, err := k.Attach(t.Context(), pod, plugFor("c1", "10.244.1.5/32", "fd00:1:1::5/128"))
	if err != nil {
		t.Fatal(err)
	}
	h := openHandle(t, k.host)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.harm(h); err != nil {
				t.Fatal(err)
			}
			if tt.name == "uplink down and up" { // the kernel forgot its addresses
				restoreIPv6(t, k)
			}
			changes := apply(t, k, state)
			if !slices.ContainsFunc(changes, func(c string) bool { return strings.Contains(c, tt.says) }) {
				t.Errorf("changes %q, want one with %q", changes, tt.says)
			}
			settled(t, k, state)
			if port, err := h.LinkGetProtinfo(linkNamed(t, k.host, plugged.HostName)); err != nil || !port.Hairpin {
				t.Errorf("port %+v, %v; want it to reflect", port, err)
			}
			reaches(t, k.host, pod, mustAddr("10.244.1.5"))
			reaches(t, k.host, pod, mustAddr("fd00:1:1::5"))
		})
	}
}

// dropRoute deletes the route of ours to that block.
func dropRoute(tb testing.TB, h *netlink.Handle, block netip.Prefix) error {
	tb.Helper()
	routes, err := ourRoutes(tb.Context(), h)
	for _, r := range routes {
		if r.Dst.String() == block.String() {
			return h.RouteDel(&r)
		}
	}
	return errors.Join(err, errors.New("no such route"))
}

func restoreIPv6(tb testing.TB, k *Kernel) {
	tb.Helper()
	index := linkNamed(tb, k.host, "up0").Attrs().Index
	steps(tb, k, addAddress(index, netip.PrefixFrom(nodeIP(0, netip.Addr.Is6), 64), netlink.SCOPE_UNIVERSE))
}

// What fails is said, and keeps nothing else from being done; others' routes
// and links stay.
func TestApplyHostGoesOn(t *testing.T) {
	k := newCable(t, 1)[0]
	h := openHandle(t, k.host)
	state := stateOf(0, 2)
	foreign := &netlink.Route{Dst: toIPNet(blocksOf(1)[0]), Gw: net.IPv4(192, 0, 2, 50), Protocol: unix.RTPROT_STATIC}
	if err := h.RouteAdd(foreign); err != nil {
		t.Fatal(err)
	}
	state.Peers = append(state.Peers,
		PeerBlock{Prefix: mustPrefix("10.244.3.0/26"), Via: mustAddr("203.0.113.3")},
		PeerBlock{Prefix: mustPrefix("10.244.4.0/26"), Via: nodeIP(3, netip.Addr.Is4)})
	state.Local = append(state.Local, LocalBlock{Prefix: mustPrefix("10.244.5.0/26"), Source: mustAddr("203.0.113.1")})
	_, err := k.ApplyHost(t.Context(), state)
	if err == nil {
		t.Fatal("no error")
	}
	for _, says := range []string{
		"a route to 10.244.2.0/26 that is not ours is in its place: to 10.244.2.0/26 via 192.0.2.50",
		"is 203.0.113.3 on the link of up0?",
		"is 203.0.113.1 an address of this node?",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error %q, want %q in it", err, says)
		}
	}
	routes, err := ourRoutes(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range routes {
		got = append(got, r.Dst.String())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"10.244.1.0/26", "10.244.4.0/26", "fd00:1:1::/122", "fd00:1:2::/122"}, got); diff != "" {
		t.Errorf("routes of ours (-want +got):\n%s", diff)
	}
	if _, err := k.CleanupHost(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := h.RouteListFiltered(unix.AF_INET, foreign, netlink.RT_FILTER_DST|netlink.RT_FILTER_GW); err != nil || len(left) != 1 {
		t.Errorf("the other program's route: %v, %v", left, err)
	}
}

func TestApplyHostRefuses(t *testing.T) {
	k := newCable(t, 1)[0]
	before := linkNames(t, k.host)
	tests := []struct {
		name   string
		change func(*HostState)
		want   error
		says   string
	}{
		{"another's link", func(s *HostState) { s.Bridge = "up0" }, ErrExists, "up0 is a veth that is not ours"},
		{"no bridge name", func(s *HostState) { s.Bridge = "" }, ErrInvalid, "bridge name"},
		{"no uplink for peers", func(s *HostState) { s.Uplink = "" }, ErrInvalid, "uplink must be named"},
		{"missing uplink", func(s *HostState) { s.Uplink = "up9" }, ErrNoLink, "uplink up9"},
		{"small mtu", func(s *HostState) { s.MTU = 500 }, ErrInvalid, "bridge mtu 500"},
		{"host bits", func(s *HostState) { s.Local[0].Prefix = mustPrefix("10.244.1.1/26") }, ErrInvalid, "10.244.1.1/26 of this node"},
		{"everything", func(s *HostState) { s.Peers[0].Prefix = mustPrefix("0.0.0.0/0") }, ErrInvalid, "0.0.0.0/0 of another node"},
		{"mixed families", func(s *HostState) { s.Peers[0].Via = mustAddr("fd00::1") }, ErrInvalid, "its own family, not fd00::1"},
		{"peer without address", func(s *HostState) { s.Peers[0].Via = netip.Addr{} }, ErrInvalid, "which address it is reached by"},
		{"no gateway address", func(s *HostState) { s.Gateways[0] = netip.Addr{} }, ErrInvalid, "plain address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state := stateOf(0, 2)
			tt.change(&state)
			changes, err := k.ApplyHost(t.Context(), state)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || len(changes) != 0 {
				t.Errorf("changes %q, error %v, want %v with %q", changes, err, tt.want, tt.says)
			}
			if diff := cmp.Diff(before, linkNames(t, k.host)); diff != "" {
				t.Errorf("links (-before +after):\n%s", diff)
			}
		})
	}
}

// An uplink that is away for a while spoils nothing but the routes over it.
func TestApplyHostWithoutUplink(t *testing.T) {
	k := newCable(t, 1)[0]
	state := stateOf(0, 2)
	state.Uplink, state.MTU = "up9", 1400
	changes, err := k.ApplyHost(t.Context(), state)
	if !errors.Is(err, ErrNoLink) || !strings.Contains(err.Error(), "up9") {
		t.Errorf("error %v, want ErrNoLink with the name", err)
	}
	if !slices.Contains(changes, "added route to 10.244.1.0/26 dev fairlead0") {
		t.Errorf("changes %q, want the route to the own block", changes)
	}
}

// The bridge keeps its MTU and MAC whatever is plugged into it.
func TestBridgeStaysAsItIs(t *testing.T) {
	k := newCable(t, 1)[0]
	for _, mtu := range []int{1500, 1450, 9000} {
		state := stateOf(0, 1)
		state.MTU = mtu
		apply(t, k, state)
		before := linkNamed(t, k.host, DefaultBridge).Attrs()
		plugged, err := k.Attach(t.Context(), newNamespace(t), plugFor("c1", "10.244.1.5/32"))
		if err != nil {
			t.Fatal(err)
		}
		for _, after := range []string{"with a port of mtu 1400", "without"} {
			now := linkNamed(t, k.host, DefaultBridge).Attrs()
			if now.MTU != mtu || now.HardwareAddr.String() != before.HardwareAddr.String() {
				t.Errorf("bridge %s: mtu %d, mac %s, want %d and %s", after, now.MTU, now.HardwareAddr, mtu, before.HardwareAddr)
			}
			if err := k.Detach(t.Context(), plugged.HostName); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := k.CleanupHost(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
