package plug

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// newPlugHost returns the kind bridge on a node with a bridge.
func newPlugHost(tb testing.TB) *bridge {
	tb.Helper()
	return newBridge(nettest.NewHost(tb))
}

// hostEnd returns the attributes of the host end of an interface.
func hostEnd(tb testing.TB, k *bridge, p Interface) *netlink.LinkAttrs {
	tb.Helper()
	return nettest.LinkNamed(tb, k.Namespace(), HostName(p.ContainerID, p.Name)).Attrs()
}

// find lists the interfaces that have links on the host.
func find(tb testing.TB, k *bridge) []Found {
	tb.Helper()
	all, err := nettest.OpenHandle(tb, k.Namespace()).LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	return k.Find(tb.Context(), all)
}

// onBridge returns the binding of an interface on a bridge.
func onBridge(name string) v1alpha1.Binding {
	return v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: name}}
}

// plugFor returns an interface of the default network.
func plugFor(addresses ...string) Interface {
	p := Interface{ContainerID: "c1", Name: "eth0", Binding: onBridge(nettest.DefaultBridge), MTU: 1400}
	p.Addresses, p.Gateways = nettest.Pod(addresses...)
	return p
}

// podRoutes lists the routes of Fairlead in a namespace, in words.
func podRoutes(tb testing.TB, ns *link.Namespace) []string {
	tb.Helper()
	routes, err := nettest.OpenHandle(tb, ns).RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: link.RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, r := range routes {
		route := toRoute(r)
		s := "to " + route.Destination.String()
		if route.Gateway.IsValid() {
			s += " via " + route.Gateway.String()
		}
		if r.Flags&int(netlink.FLAG_ONLINK) != 0 {
			s += " onlink"
		}
		out = append(out, s)
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}

func TestAttach(t *testing.T) {
	mac := net.HardwareAddr{0x02, 1, 2, 3, 4, 5}
	tests := []struct {
		name   string
		plug   Interface
		ips    []netip.Addr
		routes []string
	}{
		{
			name:   "IPv4",
			plug:   plugFor("10.244.1.5/32"),
			ips:    []netip.Addr{nettest.Addr("10.244.1.5")},
			routes: []string{"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32"},
		},
		{
			name:   "IPv6",
			plug:   plugFor("fd00:1::5/128"),
			ips:    []netip.Addr{nettest.Addr("fd00:1::5")},
			routes: []string{"to ::/0 via fe80::1"},
		},
		{
			name:   "dual stack, IPv4 comes first whatever the order",
			plug:   plugFor("fd00:1::5/128", "10.244.1.5/32"),
			ips:    []netip.Addr{nettest.Addr("10.244.1.5"), nettest.Addr("fd00:1::5")},
			routes: []string{"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32", "to ::/0 via fe80::1"},
		},
		{
			name: "a subnet, its own MAC, routes",
			plug: Interface{
				ContainerID: "c1", Name: "net1", Binding: onBridge(nettest.DefaultBridge), MTU: 1500, MAC: mac,
				Addresses: []netip.Prefix{nettest.Prefix("192.0.2.7/24"), nettest.Prefix("fd00:2::7/64")},
				Routes: []Route{
					{Destination: nettest.Prefix("198.51.100.0/24"), Gateway: nettest.Addr("192.0.2.1")},
					{Destination: nettest.Prefix("203.0.113.0/24")},
					{Destination: nettest.Prefix("fd00:3::/48"), Gateway: nettest.Addr("fd00:2::1")},
					{Destination: nettest.Prefix("fd00:4::/48"), Gateway: nettest.Addr("fd00:9::1")},
				},
			},
			ips: []netip.Addr{nettest.Addr("192.0.2.7"), nettest.Addr("fd00:2::7")},
			routes: []string{
				"to 198.51.100.0/24 via 192.0.2.1", "to 203.0.113.0/24",
				"to fd00:3::/48 via fd00:2::1", "to fd00:4::/48 via fd00:9::1", "to fd00:9::1/128",
			},
		},
		{name: "no address", plug: Interface{ContainerID: "c1", Name: "net1", Binding: onBridge(nettest.DefaultBridge), MTU: 1500}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if slices.ContainsFunc(tt.ips, netip.Addr.Is6) {
				nettest.NeedIPv6(t)
			}
			k, pod := newPlugHost(t), nettest.NewNamespace(t)
			if err := k.Make(t.Context(), pod, tt.plug); err != nil {
				t.Fatal(err)
			}
			ips, err := nettest.PodIPs(pod, tt.plug.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(tt.ips, ips, nettest.SameAddr); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tt.routes, podRoutes(t, pod)); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			checkEnds(t, k, pod, tt.plug)
			if err := k.detach(t.Context(), HostName(tt.plug.ContainerID, tt.plug.Name)); err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff([]string{nettest.DefaultBridge, "lo"}, nettest.LinkNames(t, k.Namespace())); diff != "" {
				t.Errorf("links of the host after its removal (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff([]string{"lo"}, nettest.LinkNames(t, pod)); diff != "" {
				t.Errorf("links of the pod after its removal (-want +got):\n%s", diff)
			}
		})
	}
}

// checkEnds checks both ends of an interface.
func checkEnds(t *testing.T, k *bridge, pod *link.Namespace, p Interface) {
	t.Helper()
	inside, outside := nettest.LinkNamed(t, pod, p.Name).Attrs(), hostEnd(t, k, p)
	if p.MAC != nil && inside.HardwareAddr.String() != p.MAC.String() {
		t.Errorf("mac %s, want %s", inside.HardwareAddr, p.MAC)
	}
	for _, a := range []*netlink.LinkAttrs{inside, outside} {
		if a.MTU != p.MTU || a.Flags&net.FlagUp == 0 {
			t.Errorf("%s: mtu %d, flags %v, want %d and up", a.Name, a.MTU, a.Flags, p.MTU)
		}
	}
	if lo := nettest.LinkNamed(t, pod, "lo").Attrs(); lo.Flags&net.FlagUp == 0 {
		t.Error("lo is down in the pod")
	}
	if bridge := nettest.LinkNamed(t, k.Namespace(), p.Binding.Bridge.Name).Attrs(); outside.MasterIndex != bridge.Index {
		t.Errorf("host end is on link %d, want %d", outside.MasterIndex, bridge.Index)
	}
	made := Made{Kind: KindBridge, ContainerID: p.ContainerID, Name: p.Name, HostLink: outside.Name, Bridge: nettest.DefaultBridge}
	if diff := gocmp.Diff([]Found{{Made: made, Index: outside.Index, Up: true}}, find(t, k)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

// untouched asserts that a failed Make left nothing.
func untouched(t *testing.T, k *bridge, pod *link.Namespace, host, inside []string) {
	t.Helper()
	if diff := gocmp.Diff(host, nettest.LinkNames(t, k.Namespace())); diff != "" {
		t.Errorf("links of the host (-before +after):\n%s", diff)
	}
	if diff := gocmp.Diff(inside, nettest.LinkNames(t, pod)); diff != "" {
		t.Errorf("links of the pod (-before +after):\n%s", diff)
	}
}

func TestAttachRefuses(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	host, inside := nettest.LinkNames(t, k.Namespace()), nettest.LinkNames(t, pod)
	edit := func(change func(*Interface)) Interface {
		p := plugFor("10.244.1.5/32")
		change(&p)
		return p
	}
	tests := []struct {
		name string
		plug Interface
		want error
		says string
	}{
		{"no bridge", edit(func(p *Interface) { p.Binding = onBridge("br9") }), link.ErrNoBridge, "br9"},
		{"a link that is no bridge", edit(func(p *Interface) { p.Binding = onBridge("lo") }), unix.EOPNOTSUPP, "eth0"},
		{"mtu above the bridge's", edit(func(p *Interface) { p.MTU = 9000 }), link.ErrInvalid, "9000 of eth0 must not be above the 1500 bytes of bridge fairlead0"},
		{"name is taken", edit(func(p *Interface) { p.Name = "lo" }), link.ErrExists, "lo in the namespace at"},
		{"no binding", edit(func(p *Interface) { p.Binding = v1alpha1.Binding{} }), link.ErrInvalid, "binding must be bridge"},
		{"no bridge's name", edit(func(p *Interface) { p.Binding = onBridge("") }), link.ErrInvalid, `bridge name "" must not be empty`},
		{"no name", edit(func(p *Interface) { p.Name = "" }), link.ErrInvalid, "must not be empty"},
		{"long name", edit(func(p *Interface) { p.Name = "interface-number-1" }), link.ErrInvalid, "at most 15 bytes"},
		{"slash in name", edit(func(p *Interface) { p.Name = "a/b" }), link.ErrInvalid, "slash"},
		{"no container", edit(func(p *Interface) { p.ContainerID = "" }), link.ErrInvalid, "container ID"},
		{"long container", edit(func(p *Interface) { p.ContainerID = strings.Repeat("x", 250) }), link.ErrInvalid, "9 bytes too long"},
		{"group MAC", edit(func(p *Interface) { p.MAC = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} }), link.ErrInvalid, "01:00:5e:00:00:01"},
		{"mtu too small", edit(func(p *Interface) { p.MTU = 67 }), link.ErrInvalid, "mtu 67 of eth0 must be from 68"},
		{"mtu too small for IPv6", edit(func(p *Interface) { p.Addresses[0] = nettest.Prefix("fd00::1/128"); p.Gateways = nil; p.MTU = 1000 }), link.ErrInvalid, "at least 1280"},
		{"address without value", edit(func(p *Interface) { p.Addresses[0] = netip.Prefix{} }), link.ErrInvalid, "address"},
		{"gateway of the other family", edit(func(p *Interface) { p.Gateways[0] = nettest.Addr("fe80::1") }), link.ErrInvalid, "fe80::1"},
		{"host bits in a route", edit(func(p *Interface) { p.Routes = []Route{{Destination: nettest.Prefix("10.0.0.1/8")}} }), link.ErrInvalid, "10.0.0.0/8"},
		{"mixed route", edit(func(p *Interface) {
			p.Routes = []Route{{Destination: nettest.Prefix("fd00::/8"), Gateway: nettest.Addr("10.0.0.1")}}
		}), link.ErrInvalid, "its own family"},
		{"two default routes", edit(func(p *Interface) { p.Gateways = append(p.Gateways, nettest.Addr("169.254.1.2")) }), unix.EEXIST, "0.0.0.0/0 via 169.254.1.2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := k.Make(t.Context(), pod, tt.plug)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("error %v, want %v with %q", err, tt.want, tt.says)
			}
			nettest.Fits(t, err)
			untouched(t, k, pod, host, inside)
		})
	}
	t.Run("the host's own namespace", func(t *testing.T) {
		if err := k.Make(t.Context(), k.Namespace(), plugFor("10.244.1.5/32")); !errors.Is(err, link.ErrNotNamespace) {
			t.Errorf("error %v, want ErrNotNamespace", err)
		}
		untouched(t, k, pod, host, inside)
	})
}

// A host end of an attempt that was never recorded is replaced.
func TestAttachOverLeftover(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	plug := plugFor("10.244.1.5/32")
	if err := k.Make(t.Context(), pod, plug); err != nil {
		t.Fatal(err)
	}
	first := hostEnd(t, k, plug)
	if err := k.Make(t.Context(), pod, plug); err != nil {
		t.Fatalf("over a leftover in the same namespace: %v", err)
	}
	if second := hostEnd(t, k, plug); second.Index == first.Index {
		t.Errorf("first %+v, second %+v: want a new link", first, second)
	}
	other := nettest.NewNamespace(t)
	if err := k.Make(t.Context(), other, plug); !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "another namespace") {
		t.Errorf("while it lives in another namespace: %v, want ErrExists", err)
	}
	checkEnds(t, k, pod, plug)
	untouched(t, k, other, []string{nettest.DefaultBridge, first.Name, "lo"}, []string{"lo"})
}

// Another program made the interface: Make fails and leaves it alone.
func TestAttachSparesOthers(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	nettest.AddBridge(t, pod, "eth0", 1500)
	host, inside := nettest.LinkNames(t, k.Namespace()), nettest.LinkNames(t, pod)
	err := k.Make(t.Context(), pod, plugFor("10.244.1.5/32"))
	if !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "eth0 in the namespace at") {
		t.Errorf("eth0 of another program: %v, want ErrExists", err)
	}
	untouched(t, k, pod, host, inside)

	pod = nettest.NewNamespace(t)
	nettest.AddBridge(t, k.Namespace(), HostName("c1", "eth0"), 1500)
	host = nettest.LinkNames(t, k.Namespace())
	err = k.Make(t.Context(), pod, plugFor("10.244.1.5/32"))
	if !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "not ours") {
		t.Errorf("host end of another program: %v, want ErrExists", err)
	}
	untouched(t, k, pod, host, []string{"lo"})
}

// Some runtimes switch IPv6 off in every namespace.
func TestAttachWhereIPv6IsOff(t *testing.T) {
	nettest.NeedIPv6(t)
	for _, addresses := range [][]string{{"fd00:1::5/128"}, {"10.244.1.5/32", "fd00:1::5/128"}} {
		t.Run(strings.Join(addresses, " "), func(t *testing.T) {
			k, pod := newPlugHost(t), nettest.NewNamespace(t)
			nettest.In(t, pod, func() error {
				_, err := link.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1")
				return err
			})
			if err := k.Make(t.Context(), pod, plugFor(addresses...)); err != nil {
				t.Fatal(err)
			}
			ips, err := nettest.PodIPs(pod, "eth0")
			if err != nil || len(ips) != len(addresses) {
				t.Errorf("addresses %v, %v", ips, err)
			}
			want := []string{"to ::/0 via fe80::1"}
			if len(addresses) == 2 {
				want = []string{"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32", "to ::/0 via fe80::1"}
			}
			if diff := gocmp.Diff(want, podRoutes(t, pod)); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

// An address is usable when Make returns: it does not wait for duplicate address
// detection (a pod start went from 3 s to 16 s, kubernetes#54651).
func TestAttachWithoutDAD(t *testing.T) {
	nettest.NeedIPv6(t)
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	if err := k.Make(t.Context(), pod, plugFor("fd00:1::5/128")); err != nil {
		t.Fatal(err)
	}
	nettest.In(t, pod, func() error {
		c, err := net.ListenPacket("udp", "[fd00:1::5]:4242")
		if err != nil {
			return err
		}
		return c.Close()
	})
	addrs, err := nettest.OpenHandle(t, pod).AddrList(nettest.LinkNamed(t, pod, "eth0"), unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() {
			found = true
			if a.Flags&unix.IFA_F_TENTATIVE != 0 || a.Flags&unix.IFA_F_NODAD == 0 {
				t.Errorf("%v has flags %#x: want no detection", a.IPNet, a.Flags)
			}
		}
	}
	if !found {
		t.Errorf("no global address among %v", addrs)
	}
}

// Every gateway has a route of its own, so that later routes can use it without the flag
// onlink. A network may have that route already.
func TestGatewaysCanBeUsed(t *testing.T) {
	nettest.NeedIPv6(t)
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	plug := Interface{
		ContainerID: "c1", Name: "eth0", Binding: onBridge(nettest.DefaultBridge), MTU: 1500,
		Addresses: []netip.Prefix{nettest.Prefix("10.244.1.5/32"), nettest.Prefix("fd00:1::5/128")},
		Gateways:  []netip.Addr{nettest.Addr("169.254.1.1"), nettest.Addr("fd00:9::1")},
		Routes: []Route{
			{Destination: nettest.Prefix("192.0.2.0/24"), Gateway: nettest.Addr("169.254.1.1")},
			{Destination: nettest.Prefix("198.51.100.1/32")},
			{Destination: nettest.Prefix("203.0.113.0/24"), Gateway: nettest.Addr("198.51.100.1")},
		},
	}
	if err := k.Make(t.Context(), pod, plug); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32", "to 192.0.2.0/24 via 169.254.1.1",
		"to 198.51.100.1/32", "to 203.0.113.0/24 via 198.51.100.1 onlink", "to ::/0 via fd00:9::1", "to fd00:9::1/128",
	}
	got := podRoutes(t, pod)
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	nettest.In(t, pod, func() error {
		dev, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, g := range plug.Gateways {
			// The plugin sbr adds such a route in a table of its own.
			r := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: link.ToIPNet(defaultRoute(g)), Gw: g.AsSlice(), Table: 100}
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("route via %s: %w", g, err)
			}
		}
		return nil
	})
	seen, err := (Namespaces{}).Inspect(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	others := []Route{{Destination: nettest.Prefix("0.0.0.0/0"), Gateway: nettest.Addr("169.254.1.1")}, {Destination: nettest.Prefix("::/0"), Gateway: nettest.Addr("fd00:9::1")}}
	if diff := gocmp.Diff(others, seen["eth0"].OtherRoutes, gocmp.Comparer(func(a, b Route) bool { return a == b })); diff != "" {
		t.Errorf("routes of other tables (-want +got):\n%s", diff)
	}
	main := append(want, "the kernel's to fe80::/64")
	if n := len(seen["eth0"].Routes); n != len(main) {
		t.Errorf("%d routes of the main table, want %q: %v", n, main, seen["eth0"].Routes)
	}
}

// Two interfaces of a pod on the routed network have the same gateway, each with a route of
// its own to it, if one is needed.
func TestTwoInterfacesWithOneGateway(t *testing.T) {
	nettest.NeedIPv6(t)
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	first := plugFor("10.244.1.5/32", "fd00:1::5/128")
	second := Interface{
		ContainerID: "c1", Name: "net1", Binding: onBridge(nettest.DefaultBridge), MTU: 1400,
		Addresses: []netip.Prefix{nettest.Prefix("10.1.0.5/32"), nettest.Prefix("fd00:2::5/128")},
	}
	for _, g := range first.Gateways {
		network := nettest.Prefix("10.1.0.0/16")
		if g.Is6() {
			network = nettest.Prefix("fd00:2::/64")
		}
		second.Routes = append(second.Routes, Route{Destination: network, Gateway: g})
	}
	for _, p := range []Interface{first, second} {
		if err := k.Make(t.Context(), pod, p); err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
	}
	seen, err := (Namespaces{}).Inspect(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range first.Gateways {
		var way []Route
		if g.Is4() { // fe80::1 is in the subnet of an address
			way = []Route{{Destination: netip.PrefixFrom(g, g.BitLen())}}
		}
		for name, want := range map[string][]Route{"eth0": {{Destination: defaultRoute(g), Gateway: g}}, "net1": second.Routes} {
			for _, r := range append(way, want...) {
				if !slices.Contains(seen[name].Routes, r) {
					t.Errorf("%s lacks the route %v: %v", name, r, seen[name].Routes)
				}
			}
		}
	}
}
