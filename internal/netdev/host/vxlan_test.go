package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// routedMTU is the MTU of the links of newRouted, in bytes.
const routedMTU = 1500

// newRouted makes nodes whose uplinks share no link, and the router between them, which
// drops packets with the address of a pod. Node i, from 0, has 10.99.i+1.1/24 and
// fd00:99:i+1::1/64 if the underlay has the family. The nodes refuse packets whose
// answers would leave by another link.
func newRouted(tb testing.TB, count int, underlay ...func(netip.Addr) bool) (nodes []*Kernel, router *Kernel) {
	tb.Helper()
	router = newHostNode(tb)
	for i := range count {
		k := newHostNode(tb)
		leg := fmt.Sprintf("leg%d", i+1)
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: leg, MTU: routedMTU, HardwareAddr: plug.RandomMAC()}}
		nettest.Must(tb, nettest.OpenHandle(tb, router.Namespace()).LinkAdd(bridge))
		index := nettest.LinkNamed(tb, router.Namespace(), leg).Attrs().Index
		nettest.Steps(tb, router.Sockets, link.Raise(leg))
		nettest.AddCable(tb, router.Namespace(), fmt.Sprintf("port%d", i+1), index, nettest.Cable{To: k.Namespace(), Name: "up0", MTU: routedMTU})
		up0 := nettest.LinkNamed(tb, k.Namespace(), "up0").Attrs().Index
		nettest.Steps(tb, k.Sockets, link.Raise("up0"))
		h := nettest.OpenHandle(tb, k.Namespace())
		for _, of := range underlay {
			own := routedIP(i, of)
			bits := own.BitLen() * 3 / 4
			if own.Is6() {
				bits = 64
			}
			gateway := own.Next()
			nettest.Steps(tb, router.Sockets, link.AddAddress(index, netip.PrefixFrom(gateway, bits), netlink.SCOPE_UNIVERSE))
			nettest.Steps(tb, k.Sockets, link.AddAddress(up0, netip.PrefixFrom(own, bits), netlink.SCOPE_UNIVERSE))
			if err := h.RouteAdd(&netlink.Route{LinkIndex: up0, Gw: gateway.AsSlice(), Dst: link.ToIPNet(everywhere(gateway))}); err != nil {
				tb.Fatal(err)
			}
		}
		nodes = append(nodes, k)
		nettest.In(tb, k.Namespace(), func() error {
			_, err := link.SetSysctl("net/ipv4/conf/all/rp_filter", "1")
			return err
		})
	}
	nettest.In(tb, router.Namespace(), func() error {
		_, err := link.SetSysctl("net/ipv4/ip_forward", "1")
		if router.IPv6 {
			_, err6 := link.SetSysctl("net/ipv6/conf/all/forwarding", "1")
			err = errors.Join(err, err6)
		}
		return err
	})
	h := nettest.OpenHandle(tb, router.Namespace())
	for _, pods := range []string{"10.244.0.0/16", "fd00:1::/32"} {
		if !router.IPv6 && nettest.Prefix(pods).Addr().Is6() {
			continue
		}
		for _, dst := range []bool{false, true} {
			rule := netlink.NewRule()
			rule.Type, rule.Priority, rule.Family = unix.FR_ACT_BLACKHOLE, 100, link.Family(nettest.Prefix(pods).Addr())
			if dst {
				rule.Dst = link.ToIPNet(nettest.Prefix(pods))
			} else {
				rule.Src = link.ToIPNet(nettest.Prefix(pods))
			}
			if err := h.RuleAdd(rule); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return nodes, router
}

// everywhere returns the destination of a default route of a gateway's family.
func everywhere(gateway netip.Addr) netip.Prefix {
	if gateway.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// routedIP returns the address of node i of newRouted.
func routedIP(i int, of func(netip.Addr) bool) netip.Addr {
	if a := netip.AddrFrom4([4]byte{10, 99, byte(i + 1), 1}); of(a) {
		return a
	}
	return nettest.Addr(fmt.Sprintf("fd00:99:%x::1", i+1))
}

// routedState returns the state of node i of two. A block uses the underlay of its own
// family if there is one, otherwise the first.
func routedState(i int, underlay ...func(netip.Addr) bool) State {
	s := State{
		Uplink: "up0", IPv4: true, IPv6: true,
		Tunnel: &Tunnel{VNI: 158, Port: 4789, MAC: TunnelMAC(fmt.Sprint("n", i)), MTU: routedMTU},
	}
	for _, of := range underlay {
		s.Tunnel.Underlay = append(s.Tunnel.Underlay, routedIP(i, of))
	}
	for node := range 2 {
		for at, of := range underlay {
			remote := RemoteNode{Underlay: routedIP(node, of), MAC: TunnelMAC(fmt.Sprint("n", node))}
			for _, block := range blocksOf(node) {
				mine := of(block.Addr())
				if !mine && (len(underlay) > 1 || at > 0) {
					continue
				}
				if node == i {
					s.Local = append(s.Local, block)
					if mine {
						s.Sources = append(s.Sources, remote.Underlay)
					}
				}
				remote.Blocks = append(remote.Blocks, block)
			}
			if node != i {
				s.Remote = append(s.Remote, remote)
			}
		}
	}
	return s
}

// podOn plugs a pod on a node and returns its addresses, in the families of
// the node.
func podOn(tb testing.TB, k *Kernel, node int, mtu int) (*link.Namespace, []netip.Addr) {
	tb.Helper()
	var addresses []string
	var ips []netip.Addr
	for _, block := range blocksOf(node) {
		if block.Addr().Is6() && !k.IPv6 {
			continue
		}
		ip := block.Addr().Next().Next()
		addresses, ips = append(addresses, netip.PrefixFrom(ip, ip.BitLen()).String()), append(ips, ip)
	}
	ns := nettest.NewNamespace(tb)
	p := podPlug("c1", addresses...)
	p.MTU = mtu
	if err := kindsOf(k).Make(tb.Context(), ns, p); err != nil {
		tb.Fatal(err)
	}
	return ns, ips
}

// Pods and nodes reach each other over a router that does not know the pods, with packets
// of full size, for all families of pods and underlay.
func TestNodesBehindARouter(t *testing.T) {
	nettest.NeedIPv6(t)
	is4, is6 := netip.Addr.Is4, netip.Addr.Is6
	for _, tt := range []struct {
		name     string
		underlay []func(netip.Addr) bool
		mtu      int
	}{
		{"IPv4", []func(netip.Addr) bool{is4}, 1450},
		{"IPv6", []func(netip.Addr) bool{is6}, 1430},
		{"both", []func(netip.Addr) bool{is4, is6}, 1430},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes, _ := newRouted(t, 2, tt.underlay...)
			var pods []*link.Namespace
			var ips [][]netip.Addr
			for i, k := range nodes {
				state := routedState(i, tt.underlay...)
				apply(t, k, state)
				settled(t, k, state)
				ns, addresses := podOn(t, k, i, tt.mtu)
				pods, ips = append(pods, ns), append(ips, addresses)
				settled(t, k, state)
			}
			for i, pod := range pods {
				other := 1 - i
				for _, ip := range ips[other] {
					nettest.Reaches(t, pod, pods[other], ip)
					carries(t, pod, pods[other], ip, tt.mtu)
				}
				for _, of := range tt.underlay {
					nettest.Reaches(t, pod, nodes[other].Namespace(), routedIP(other, of))
					nettest.Reaches(t, pod, nodes[i].Namespace(), routedIP(i, of))
					nettest.Reaches(t, nodes[i].Namespace(), nodes[other].Namespace(), routedIP(other, of))
					for _, ip := range ips[other] {
						if of(ip) {
							nettest.Reaches(t, nodes[i].Namespace(), pods[other], ip)
						}
					}
				}
			}
			for _, k := range nodes {
				cleansUp(t, k)
			}
		})
	}
}

// cleansUp asserts that a cleanup leaves nothing of Fairlead on a node.
func cleansUp(tb testing.TB, k *Kernel) {
	tb.Helper()
	if _, err := k.CleanupHost(tb.Context(), kindsOf(k)); err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lo", "up0"}, nettest.LinkNames(tb, k.Namespace())); diff != "" {
		tb.Errorf("links after cleanup (-want +got):\n%s", diff)
	}
	h := nettest.OpenHandle(tb, k.Namespace())
	if routes, err := ourRoutes(tb.Context(), h); err != nil || len(routes) != 0 {
		tb.Errorf("routes after cleanup: %v, %v", routes, err)
	}
	if rules, err := ourRules(tb.Context(), h); err != nil || len(rules) != 0 {
		tb.Errorf("rules after cleanup: %v, %v", rules, err)
	}
}

// ApplyHost describes all its changes for a tunnel.
func TestApplyTunnelSays(t *testing.T) {
	nettest.NeedIPv6(t)
	nodes, _ := newRouted(t, 1, netip.Addr.Is4)
	k := nodes[0]
	state := routedState(0, netip.Addr.Is4)
	got := slices.DeleteFunc(apply(t, k, state), func(s string) bool {
		return strings.Contains(s, "unreachable") || strings.HasSuffix(s, "dev lo") || strings.HasPrefix(s, "set net/")
	})
	mac0, mac1 := TunnelMAC("n0").String(), TunnelMAC("n1").String()
	remote := state.Remote[0]
	want := []string{
		"created fairlead-vx4 (vni 158 from 10.99.1.1 to port 4789, mac " + mac0 + ", mtu 1450)",
		"set fairlead-vx4 up",
		"added address 10.99.1.1/32 to fairlead-vx4",
		"added neighbour " + mac1 + " behind 10.99.2.1",
		"added neighbour 10.99.2.1 at " + mac1,
		"added neighbour " + remote.nextHop(nettest.Addr("fd00::")).String() + " at " + mac1,
		"added route to 10.244.2.0/26 via 10.99.2.1 dev fairlead-vx4",
		"added route to fd00:1:2::/122 via " + remote.nextHop(nettest.Addr("fd00::")).String() + " dev fairlead-vx4",
		"added route to 10.99.2.1/32 via 10.99.2.1 dev fairlead-vx4 for pods",
		"added IPv4 routing rule from 10.244.1.0/26 lo to table 254",
		"added IPv4 routing rule from 10.244.1.0/26 to table 158",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	state.Remote = nil
	apply(t, k, state)
	settled(t, k, state)
	if rules, err := ourRules(t.Context(), nettest.OpenHandle(t, k.Namespace())); err != nil || len(rules) > 0 {
		t.Errorf("rules without a remote node: %v, %v", rules, err)
	}
	state.Tunnel = nil
	if diff := cmp.Diff([]string{"removed fairlead-vx4"}, apply(t, k, state)); diff != "" {
		t.Errorf("changes by no tunnel (-want +got):\n%s", diff)
	}
	settled(t, k, state)
}

// The node's address on the tunnel is a source and no destination. Without the flag
// noprefixroute the kernel would make routes to it, of IPv6 alone, and these would be the
// only routes into a tunnel without remote nodes.
func TestTunnelToNobodyHasNoRoutes(t *testing.T) {
	nettest.NeedIPv6(t)
	families := []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6}
	nodes, _ := newRouted(t, 1, families...)
	k := nodes[0]
	state := routedState(0, families...)
	state.Remote = nil
	apply(t, k, state)
	settled(t, k, state)
	h := nettest.OpenHandle(t, k.Namespace())
	for _, name := range []string{"fairlead-vx4", "fairlead-vx6"} {
		routes, err := h.RouteList(nettest.LinkNamed(t, k.Namespace(), name), netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
				t.Errorf("a route into %s: %v", name, r)
			}
		}
	}
}

// Any change to the tunnel is noticed by the watch, corrected, and described.
func TestTunnelIsMended(t *testing.T) {
	nettest.NeedIPv6(t)
	nodes, _ := newRouted(t, 1, netip.Addr.Is4)
	k := nodes[0]
	state := routedState(0, netip.Addr.Is4)
	apply(t, k, state)
	h := nettest.OpenHandle(t, k.Namespace())
	tunnel := func() netlink.Link { return nettest.LinkNamed(t, k.Namespace(), "fairlead-vx4") }
	entry := func(n neighbour, kind, flags int) error {
		c, err := k.Conn()
		if err != nil {
			return err
		}
		defer k.Release(c)
		n.link = tunnel().Attrs().Index
		return c.Do(n.step("changing", kind, flags))
	}
	mac := [6]byte(TunnelMAC("n1"))
	hop := neighbour{address: nettest.Addr("10.99.2.1"), mac: mac}
	hop6 := neighbour{address: state.Remote[0].nextHop(nettest.Addr("fd00::")), mac: mac}
	forward := neighbour{address: nettest.Addr("10.99.2.1"), mac: mac, forwarding: true}
	elsewhere := hop
	elsewhere.mac[5]++
	stray := forward
	stray.mac[5]++
	tests := []struct {
		name string
		harm func() error
		says string
	}{
		{"deleted", func() error { return h.LinkDel(tunnel()) }, "created fairlead-vx4"},
		{"down", func() error { return h.LinkSetDown(tunnel()) }, "set fairlead-vx4 up"},
		{"mtu", func() error { return h.LinkSetMTU(tunnel(), 1400) }, "set the mtu of fairlead-vx4 from 1400 to 1450"},
		{"mac", func() error { return h.LinkSetHardwareAddr(tunnel(), net.HardwareAddr{2, 0, 0, 0, 0, 1}) }, "set the mac of fairlead-vx4"},
		{"address", func() error {
			return h.AddrDel(tunnel(), &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("10.99.1.1/32"))})
		}, "added address 10.99.1.1/32 to fairlead-vx4"},
		{"route", func() error { return dropRoute(t, h, blocksOf(1)[0]) }, "added route to 10.244.2.0/26"},
		{"IPv6 route", func() error { return dropRoute(t, h, blocksOf(1)[1]) }, "added route to fd00:1:2::/122"},
		{"pods' route", func() error { return dropRoute(t, h, nettest.Prefix("10.99.2.1/32")) }, "added route to 10.99.2.1/32"},
		{"neighbour", func() error { return entry(hop, unix.RTM_DELNEIGH, 0) }, "added neighbour 10.99.2.1 at"},
		{"IPv6 neighbour", func() error { return entry(hop6, unix.RTM_DELNEIGH, 0) }, "added neighbour fe80"},
		{"neighbour elsewhere", func() error { return entry(elsewhere, unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE) }, "added neighbour 10.99.2.1 at"},
		{"forwarding entry", func() error { return entry(forward, unix.RTM_DELNEIGH, 0) }, "behind 10.99.2.1"},
		{"stray forwarding entry", func() error { return entry(stray, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE) }, "removed neighbour"},
		{"rule", func() error {
			rules, err := ourRules(t.Context(), h)
			if err != nil || len(rules) != 2 || rules[0].Table != unix.RT_TABLE_MAIN {
				return fmt.Errorf("rules %v, %w", rules, err)
			}
			return errors.Join(h.RuleDel(&rules[0]), h.RuleDel(&rules[1]))
		}, "added IPv4 routing rule from 10.244.1.0/26 lo to table 254"},
		{"another's link in its place", func() error {
			return errors.Join(h.LinkDel(tunnel()), k.In(func() error {
				return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "fairlead-vx4"}, VxlanId: 7, Port: 8472, Learning: true})
			}))
		}, "removed fairlead-vx4, which was vni 7"},
	}
	events := startWatch(t, k)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			quiesce(t, h, events)
			if err := tt.harm(); err != nil {
				t.Fatal(err)
			}
			await(t, events, tt.name)
			changes := apply(t, k, state)
			if !slices.ContainsFunc(changes, func(c string) bool { return strings.Contains(c, tt.says) }) {
				t.Errorf("changes %q, want one with %q", changes, tt.says)
			}
			settled(t, k, state)
		})
	}
}

// A link of another program with the tunnel's name stays, and the rest of the node's
// network works.
func TestTunnelIsNotOurs(t *testing.T) {
	nettest.NeedIPv6(t)
	nodes, _ := newRouted(t, 1, netip.Addr.Is4)
	k := nodes[0]
	nettest.In(t, k.Namespace(), func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "fairlead-vx4"}, PeerName: "peer"})
	})
	state := routedState(0, netip.Addr.Is4)
	changes, err := k.ApplyHost(t.Context(), state)
	if !errors.Is(err, ErrNoTunnel) || !strings.Contains(err.Error(), "fairlead-vx4: interface exists already: it is a veth that is not ours") {
		t.Errorf("error %v", err)
	}
	if !slices.Contains(changes, "added route to 10.244.1.0/26 unreachable") {
		t.Errorf("changes %q, want the route to the own block", changes)
	}
	if nettest.LinkNamed(t, k.Namespace(), "fairlead-vx4").Type() != "veth" {
		t.Error("another's link was replaced")
	}
}

// A node that changes its address uses the new one in both directions.
func TestTunnelFollowsAddresses(t *testing.T) {
	nettest.NeedIPv6(t)
	nodes, _ := newRouted(t, 2, netip.Addr.Is4)
	states := []State{routedState(0, netip.Addr.Is4), routedState(1, netip.Addr.Is4)}
	var pods []*link.Namespace
	for i, k := range nodes {
		apply(t, k, states[i])
		ns, _ := podOn(t, k, i, 1450)
		pods = append(pods, ns)
	}
	target := blocksOf(1)[0].Addr().Next().Next()
	nettest.Reaches(t, pods[0], pods[1], target)

	moved := nettest.Addr("10.99.2.77")
	up0 := nettest.LinkNamed(t, nodes[1].Namespace(), "up0")
	h := nettest.OpenHandle(t, nodes[1].Namespace())
	if err := h.AddrDel(up0, &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("10.99.2.1/24"))}); err != nil {
		t.Fatal(err)
	}
	nettest.Steps(t, nodes[1].Sockets, link.AddAddress(up0.Attrs().Index, netip.PrefixFrom(moved, 24), netlink.SCOPE_UNIVERSE))
	if err := h.RouteReplace(&netlink.Route{LinkIndex: up0.Attrs().Index, Gw: net.IPv4(10, 99, 2, 2), Dst: link.ToIPNet(nettest.Prefix("0.0.0.0/0"))}); err != nil {
		t.Fatal(err)
	}
	states[1].Tunnel.Underlay = []netip.Addr{moved}
	states[1].Sources = []netip.Addr{moved}
	states[0].Remote[0].Underlay = moved
	for i, k := range nodes {
		apply(t, k, states[i])
		settled(t, k, states[i])
	}
	// The kernel has removed the route to the pod with its source. The sweep of the daemon follows.
	p := podPlug("c1", target.String()+"/32")
	m, err := kindsOf(nodes[1]).Plan(pods[1].Place(), p)
	nettest.Must(t, err)
	if did, err := kindsOf(nodes[1]).Repair(t.Context(), m); err != nil || !did {
		t.Errorf("repaired: %v, %v", did, err)
	}
	nettest.Reaches(t, pods[0], pods[1], target)
	nettest.Reaches(t, pods[0], nodes[1].Namespace(), moved)
	nettest.Reaches(t, nodes[0].Namespace(), pods[1], target)
}

func TestApplyTunnelRefuses(t *testing.T) {
	k := newCable(t, 1)[0]
	before := nettest.LinkNames(t, k.Namespace())
	for _, tt := range []struct {
		name   string
		change func(*State)
		says   string
	}{
		{"vni", func(s *State) { s.Tunnel.VNI = 1 << 24 }, "tunnel vni 16777216 must be from 1 to 16777215"},
		{"port", func(s *State) { s.Tunnel.Port = 0 }, "tunnel port 0 must be from 1"},
		{"mac of many", func(s *State) { s.Tunnel.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} }, `tunnel mac must be the MAC of one station, not "01:00:00:00:00:01"`},
		{"no mac", func(s *State) { s.Tunnel.MAC = nil }, "tunnel mac"},
		{"underlay", func(s *State) { s.Tunnel.Underlay = []netip.Addr{{}} }, "underlay address invalid IP"},
		{"two of a family", func(s *State) { s.Tunnel.Underlay = append(s.Tunnel.Underlay, nettest.Addr("192.0.2.9")) }, "only one of its family"},
		{"mtu", func(s *State) { s.Tunnel.MTU = 1300 }, "underlay mtu 1300 must be at least 1330 bytes to carry packets of 1280"},
		{"no tunnel", func(s *State) { s.Tunnel = nil }, "1 nodes are behind a tunnel"},
		{"remote mac", func(s *State) { s.Remote[0].MAC = make(net.HardwareAddr, 6) }, `"00:00:00:00:00:00"`},
		{"remote underlay", func(s *State) { s.Remote[0].Underlay = nettest.Addr("fe80::1%eth0") }, "fe80::1%eth0 must be a plain address"},
		{"remote block", func(s *State) { s.Remote[0].Blocks[0] = nettest.Prefix("0.0.0.0/0") }, "block 0.0.0.0/0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := routedState(0, netip.Addr.Is4)
			tt.change(&state)
			changes, err := k.ApplyHost(t.Context(), state)
			if !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), tt.says) || len(changes) != 0 {
				t.Errorf("changes %q, error %v, want ErrInvalid with %q", changes, err, tt.says)
			}
			if diff := cmp.Diff(before, nettest.LinkNames(t, k.Namespace())); diff != "" {
				t.Errorf("links (-before +after):\n%s", diff)
			}
		})
	}
}

func TestTunnelMAC(t *testing.T) {
	seen := map[string]bool{}
	for i := range 10000 {
		mac := TunnelMAC(fmt.Sprint("node-", i))
		if CheckTunnelMAC(mac) != nil || mac[0]&2 == 0 || seen[mac.String()] {
			t.Fatalf("node-%d: %s", i, mac)
		}
		seen[mac.String()] = true
	}
	if a, b := TunnelMAC("node-1"), TunnelMAC("node-1"); a.String() != b.String() {
		t.Errorf("%s, then %s", a, b)
	}
}
