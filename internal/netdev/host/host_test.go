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

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// newHostNode returns a node without any objects.
func newHostNode(tb testing.TB) *Kernel {
	tb.Helper()
	return New(nettest.NewNode(tb))
}

// podPlug returns an interface of the default network.
func podPlug(containerID string, addresses ...string) plug.Interface {
	p := plug.Interface{ContainerID: containerID, Name: "eth0", MTU: 1400, Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}}
	p.Addresses, p.Gateways = nettest.Pod(addresses...)
	return p
}

// kindsOf returns the kinds on a node, as the daemon has them.
func kindsOf(k *Kernel) *kinds.Table { return kinds.All(k.Sockets).Sending(k.Sockets, k.Source) }

// numberedPlug returns the interface of one of up to 255 pods.
func numberedPlug(i int) plug.Interface {
	return podPlug(fmt.Sprintf("c%d", i), fmt.Sprintf("10.244.0.%d/32", i))
}

// unplug removes an interface of a pod.
func unplug(tb testing.TB, k *Kernel, p plug.Interface) error {
	tb.Helper()
	return kindsOf(k).RemoveUnknown(tb.Context(), link.Place{}, p.ContainerID, p.Name)
}

// newCable makes nodes whose uplinks share a link: node i has 192.0.2.i/24 and
// fd00:99::i/64, counted from 1.
func newCable(tb testing.TB, count int) []*Kernel {
	tb.Helper()
	return newCableOf(tb, count)
}

// newCableOf is newCable with addresses of these families.
func newCableOf(tb testing.TB, count int, families ...func(netip.Addr) bool) []*Kernel {
	tb.Helper()
	nodes, _ := newCableWith(tb, count, families...)
	return nodes
}

// newCableWith is newCableOf that also returns the switch. Without families it is newCable.
func newCableWith(tb testing.TB, count int, families ...func(netip.Addr) bool) (nodes []*Kernel, middle *link.Sockets) {
	tb.Helper()
	if len(families) == 0 {
		nettest.NeedIPv6(tb)
		families = []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6}
	}
	middle = nettest.NewHost(tb)
	for i := range count {
		k := newHostNode(tb)
		name := []string{"port1", "port2", "port3"}[i]
		bridge := nettest.LinkNamed(tb, middle.Namespace(), nettest.DefaultBridge).Attrs().Index
		nettest.AddCable(tb, middle.Namespace(), name, bridge, nettest.Cable{To: k.Namespace(), Name: "up0", MTU: 1450})
		index := nettest.LinkNamed(tb, k.Namespace(), "up0").Attrs().Index
		nettest.Steps(tb, k.Sockets, link.Raise("up0"))
		for _, of := range families {
			bits := 24
			if own := nodeIP(i, of); own.Is6() {
				bits = 64
			}
			nettest.Steps(tb, k.Sockets, link.AddAddress(index, netip.PrefixFrom(nodeIP(i, of), bits), netlink.SCOPE_UNIVERSE))
		}
		nodes = append(nodes, k)
	}
	return nodes, middle
}

func nodeIP(i int, of func(netip.Addr) bool) netip.Addr {
	v4, v6 := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), nettest.Addr("fd00:99::").As16()
	if of(v4) {
		return v4
	}
	v6[15] = byte(i + 1)
	return netip.AddrFrom16(v6)
}

// blocksOf returns the blocks of a node, of both families.
func blocksOf(i int) []netip.Prefix {
	v6 := nettest.Addr("fd00:1::").As16()
	v6[5] = byte(i + 1)
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 26),
		netip.PrefixFrom(netip.AddrFrom16(v6), 122),
	}
}

// stateOf returns the state of node i of count nodes.
func stateOf(i, count int) State {
	s := State{
		Uplink: "up0", IPv4: true, IPv6: true,
	}
	for node := range count {
		for _, block := range blocksOf(node) {
			of := netip.Addr.Is4
			if block.Addr().Is6() {
				of = netip.Addr.Is6
			}
			if node == i {
				s.Local, s.Sources = append(s.Local, block), append(s.Sources, nodeIP(node, of))
			} else {
				s.Peers = append(s.Peers, PeerBlock{Prefix: block, Via: nodeIP(node, of)})
			}
		}
	}
	return s
}

func apply(tb testing.TB, k *Kernel, s State) []string {
	tb.Helper()
	changes, err := k.ApplyHost(tb.Context(), s)
	if err != nil {
		tb.Fatal(err)
	}
	return changes
}

// settled asserts that the host matches the state.
func settled(tb testing.TB, k *Kernel, s State) {
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
		ns   *link.Namespace
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
			ns := nettest.NewNamespace(t)
			p := podPlug(strings.Repeat("x", p+1), addresses...)
			p.MTU = 1450
			if err := kindsOf(k).Make(t.Context(), ns, p); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, pod{n, ns, ips})
		}
		settled(t, k, stateOf(n, 2))
	}
	for _, from := range pods {
		for _, to := range pods {
			for _, ip := range to.ips {
				nettest.Reaches(t, from.ns, to.ns, ip)
			}
		}
		for n, k := range nodes {
			nettest.Reaches(t, from.ns, k.Namespace(), nodeIP(n, netip.Addr.Is4))
			nettest.Reaches(t, from.ns, k.Namespace(), nodeIP(n, netip.Addr.Is6))
			for _, ip := range from.ips {
				nettest.Reaches(t, k.Namespace(), from.ns, ip)
			}
		}
	}
	for _, k := range nodes {
		if _, err := k.CleanupHost(t.Context(), kindsOf(k)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"lo", "up0"}, nettest.LinkNames(t, k.Namespace())); diff != "" {
			t.Errorf("links after cleanup (-want +got):\n%s", diff)
		}
		if routes, err := ourRoutes(t.Context(), nettest.OpenHandle(t, k.Namespace())); err != nil || len(routes) != 0 {
			t.Errorf("routes after cleanup: %v, %v", routes, err)
		}
		if removed, err := k.CleanupHost(t.Context(), kindsOf(k)); err != nil || len(removed) != 0 {
			t.Errorf("cleanup again: %v, %v", removed, err)
		}
	}
}

// ApplyHost describes all its changes to an empty node.
func TestApplyHostSays(t *testing.T) {
	k := newCable(t, 1)[0]
	state := stateOf(0, 2)
	nettest.In(t, k.Namespace(), func() error {
		for name, value := range map[string]string{
			"net/ipv4/ip_forward": "0", "net/ipv4/conf/up0/forwarding": "0", "net/ipv6/conf/all/forwarding": "0", "net/ipv6/conf/up0/accept_ra": "1",
			"net/ipv4/conf/all/send_redirects": "1", "net/ipv4/conf/default/send_redirects": "1",
			"net/ipv6/conf/default/accept_ra": "1", "net/ipv6/conf/default/accept_dad": "1",
		} {
			if _, err := link.SetSysctl(name, value); err != nil {
				return err
			}
		}
		return nil
	})
	got := apply(t, k, state)
	want := []string{
		"set net/ipv4/conf/up0/forwarding from 0 to 1",
		"set net/ipv4/conf/all/send_redirects from 1 to 0",
		"set net/ipv6/conf/up0/accept_ra from 1 to 2",
		"set net/ipv6/conf/all/forwarding from 0 to 1",
		"added route to 10.244.1.0/26 unreachable",
		"added route to fd00:1:1::/122 unreachable",
		"added route to 169.254.1.1/32 dev lo",
		"added route to 10.244.2.0/26 via 192.0.2.2 dev up0",
		"added route to fd00:1:2::/122 via fd00:99::2 dev up0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	settled(t, k, state)

	state = ofFamily(state, netip.Addr.Is6)
	want = []string{
		"removed route to 10.244.1.0/26",
		"removed route to 10.244.2.0/26 via 192.0.2.2",
		"removed route to 169.254.1.1/32",
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

// Any change to the host is corrected and described.
func TestApplyHostMends(t *testing.T) {
	k := newCable(t, 1)[0]
	tests := []struct {
		name string
		harm func(h *netlink.Handle) error
		says string
	}{
		{"own route deleted", func(h *netlink.Handle) error {
			return dropRoute(t, h, blocksOf(0)[0])
		}, "added route to 10.244.1.0/26"},
		{"peer's route deleted", func(h *netlink.Handle) error {
			return dropRoute(t, h, blocksOf(1)[1])
		}, "added route to fd00:1:2::/122"},
		{"peer's route elsewhere", func(h *netlink.Handle) error {
			return h.RouteReplace(&netlink.Route{Dst: link.ToIPNet(blocksOf(1)[0]), Gw: net.IPv4(192, 0, 2, 77), Protocol: link.RouteProtocol})
		}, "added route to 10.244.2.0/26 via 192.0.2.2"},
		{"own route elsewhere", func(h *netlink.Handle) error {
			return h.RouteReplace(&netlink.Route{Dst: link.ToIPNet(blocksOf(0)[0]), LinkIndex: loopback, Scope: netlink.SCOPE_LINK, Protocol: link.RouteProtocol})
		}, "added route to 10.244.1.0/26"},
		{"gateway's route deleted", func(h *netlink.Handle) error {
			return dropRoute(t, h, nettest.Prefix("169.254.1.1/32"))
		}, "added route to 169.254.1.1/32"},
		{"forwarding off", func(*netlink.Handle) error {
			return k.In(func() error {
				_, on := link.SetSysctl("net/ipv4/ip_forward", "1")
				_, off := link.SetSysctl("net/ipv4/ip_forward", "0")
				return errors.Join(on, off)
			})
		}, "turned on forwarding on 1 host ends"},
		{"stray route", func(h *netlink.Handle) error {
			return h.RouteAdd(&netlink.Route{Dst: link.ToIPNet(nettest.Prefix("10.244.9.0/26")), Gw: net.IPv4(192, 0, 2, 9), Protocol: link.RouteProtocol})
		}, "removed route to 10.244.9.0/26"},
		{"uplink down and up", func(h *netlink.Handle) error {
			up, err := h.LinkByName("up0")
			return errors.Join(err, h.LinkSetDown(up), h.LinkSetUp(up))
		}, "added route to 10.244.2.0/26"},
		// As "sysctl --system" does: the kernel sends no message.
		{"accept_ra set back", func(*netlink.Handle) error {
			return k.In(func() error {
				_, err := link.SetSysctl("net/ipv6/conf/up0/accept_ra", "1")
				return err
			})
		}, "set net/ipv6/conf/up0/accept_ra from 1 to 2"},
	}
	state := stateOf(0, 2)
	apply(t, k, state)
	pod := nettest.NewNamespace(t)
	if err := kindsOf(k).Make(t.Context(), pod, podPlug("c1", "10.244.1.5/32", "fd00:1:1::5/128")); err != nil {
		t.Fatal(err)
	}
	h := nettest.OpenHandle(t, k.Namespace())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.harm(h); err != nil {
				t.Fatal(err)
			}
			if tt.name == "uplink down and up" { // the kernel dropped its addresses
				restoreIPv6(t, k)
			}
			changes := apply(t, k, state)
			if !slices.ContainsFunc(changes, func(c string) bool { return strings.Contains(c, tt.says) }) {
				t.Errorf("changes %q, want one with %q", changes, tt.says)
			}
			settled(t, k, state)
			nettest.Reaches(t, k.Namespace(), pod, nettest.Addr("10.244.1.5"))
			nettest.Reaches(t, k.Namespace(), pod, nettest.Addr("fd00:1:1::5"))
		})
	}
}

// dropRoute deletes Fairlead's route to a block.
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
	index := nettest.LinkNamed(tb, k.Namespace(), "up0").Attrs().Index
	nettest.Steps(tb, k.Sockets, link.AddAddress(index, netip.PrefixFrom(nodeIP(0, netip.Addr.Is6), 64), netlink.SCOPE_UNIVERSE))
}

// Failed steps are reported and do not stop the others; routes and links of others stay.
func TestApplyHostGoesOn(t *testing.T) {
	k := newCable(t, 1)[0]
	h := nettest.OpenHandle(t, k.Namespace())
	state := stateOf(0, 2)
	foreign := &netlink.Route{Dst: link.ToIPNet(blocksOf(1)[0]), Gw: net.IPv4(192, 0, 2, 50), Protocol: unix.RTPROT_STATIC}
	if err := h.RouteAdd(foreign); err != nil {
		t.Fatal(err)
	}
	state.Peers = append(state.Peers,
		PeerBlock{Prefix: nettest.Prefix("10.244.3.0/26"), Via: nettest.Addr("203.0.113.3")},
		PeerBlock{Prefix: nettest.Prefix("10.244.4.0/26"), Via: nodeIP(3, netip.Addr.Is4)})
	_, err := k.ApplyHost(t.Context(), state)
	if err == nil {
		t.Fatal("no error")
	}
	for _, says := range []string{
		"a route to 10.244.2.0/26 that is not ours is in its place: to 10.244.2.0/26 via 192.0.2.50",
		"is 203.0.113.3 on the link of up0?",
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
	if diff := cmp.Diff([]string{"10.244.1.0/26", "10.244.4.0/26", "169.254.1.1/32", "fd00:1:1::/122", "fd00:1:2::/122"}, got); diff != "" {
		t.Errorf("routes of ours (-want +got):\n%s", diff)
	}
	if _, err := k.CleanupHost(t.Context(), kindsOf(k)); err != nil {
		t.Fatal(err)
	}
	if left, err := h.RouteListFiltered(unix.AF_INET, foreign, netlink.RT_FILTER_DST|netlink.RT_FILTER_GW); err != nil || len(left) != 1 {
		t.Errorf("the other program's route: %v, %v", left, err)
	}
}

func TestApplyHostRefuses(t *testing.T) {
	k := newCable(t, 1)[0]
	before := nettest.LinkNames(t, k.Namespace())
	tests := []struct {
		name   string
		change func(*State)
		want   error
		says   string
	}{
		{"no uplink for peers", func(s *State) { s.Uplink = "" }, link.ErrInvalid, "uplink must be named"},
		{"host bits", func(s *State) { s.Local[0] = nettest.Prefix("10.244.1.1/26") }, link.ErrInvalid, "10.244.1.1/26 of this node"},
		{"everything", func(s *State) { s.Peers[0].Prefix = nettest.Prefix("0.0.0.0/0") }, link.ErrInvalid, "0.0.0.0/0 of another node"},
		{"mixed families", func(s *State) { s.Peers[0].Via = nettest.Addr("fd00::1") }, link.ErrInvalid, "its own family, not fd00::1"},
		{"peer without address", func(s *State) { s.Peers[0].Via = netip.Addr{} }, link.ErrInvalid, "which address it is reached by"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state := stateOf(0, 2)
			tt.change(&state)
			changes, err := k.ApplyHost(t.Context(), state)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || len(changes) != 0 {
				t.Errorf("changes %q, error %v, want %v with %q", changes, err, tt.want, tt.says)
			}
			if diff := cmp.Diff(before, nettest.LinkNames(t, k.Namespace())); diff != "" {
				t.Errorf("links (-before +after):\n%s", diff)
			}
		})
	}
}

// While the uplink is missing, only the routes over it fail.
func TestApplyHostWithoutUplink(t *testing.T) {
	k := newCable(t, 1)[0]
	state := stateOf(0, 2)
	state.Uplink = "up9"
	changes, err := k.ApplyHost(t.Context(), state)
	if !errors.Is(err, link.ErrNoLink) || !strings.Contains(err.Error(), "up9") {
		t.Errorf("error %v, want ErrNoLink with the name", err)
	}
	if !slices.Contains(changes, "added route to 10.244.1.0/26 unreachable") {
		t.Errorf("changes %q, want the route to the own block", changes)
	}
}
