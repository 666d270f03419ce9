package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plugFor is an interface of the default network.
func plugFor(containerID string, addresses ...string) Plug {
	p := Plug{ContainerID: containerID, Name: "eth0", Bridge: DefaultBridge, MTU: 1400}
	for _, a := range addresses {
		prefix := mustPrefix(a)
		p.Addresses = append(p.Addresses, prefix)
		if prefix.Addr().Is4() {
			p.Gateways = append(p.Gateways, mustAddr("169.254.1.1"))
		} else {
			p.Gateways = append(p.Gateways, mustAddr("fe80::1"))
		}
	}
	return p
}

// podRoutes lists the routes of ours in a namespace, as words.
func podRoutes(tb testing.TB, ns *Namespace) []string {
	tb.Helper()
	routes, err := ourRoutes(tb.Context(), openHandle(tb, ns))
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, r := range routes {
		s := describe(r)
		s = s[:strings.Index(s, " on link")]
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
		plug   Plug
		ips    []netip.Addr
		routes []string
	}{
		{
			name:   "IPv4",
			plug:   plugFor("c1", "10.244.1.5/32"),
			ips:    []netip.Addr{mustAddr("10.244.1.5")},
			routes: []string{"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32"},
		},
		{
			name:   "IPv6",
			plug:   plugFor("c1", "fd00:1::5/128"),
			ips:    []netip.Addr{mustAddr("fd00:1::5")},
			routes: []string{"to ::/0 via fe80::1"},
		},
		{
			name:   "dual stack, IPv4 comes first whatever the order",
			plug:   plugFor("c1", "fd00:1::5/128", "10.244.1.5/32"),
			ips:    []netip.Addr{mustAddr("10.244.1.5"), mustAddr("fd00:1::5")},
			routes: []string{"to 0.0.0.0/0 via 169.254.1.1", "to 169.254.1.1/32", "to ::/0 via fe80::1"},
		},
		{
			name: "a subnet, its own MAC, routes",
			plug: Plug{
				ContainerID: "c1", Name: "net1", Bridge: DefaultBridge, MTU: 1500, MAC: mac,
				Addresses: []netip.Prefix{mustPrefix("192.0.2.7/24"), mustPrefix("fd00:2::7/64")},
				Routes: []Route{
					{Destination: mustPrefix("198.51.100.0/24"), Gateway: mustAddr("192.0.2.1")},
					{Destination: mustPrefix("203.0.113.0/24")},
					{Destination: mustPrefix("fd00:3::/48"), Gateway: mustAddr("fd00:2::1")},
					{Destination: mustPrefix("fd00:4::/48"), Gateway: mustAddr("fd00:9::1")},
				},
			},
			ips: []netip.Addr{mustAddr("192.0.2.7"), mustAddr("fd00:2::7")},
			routes: []string{
				"to 198.51.100.0/24 via 192.0.2.1", "to 203.0.113.0/24",
				"to fd00:3::/48 via fd00:2::1", "to fd00:4::/48 via fd00:9::1", "to fd00:9::1/128",
			},
		},
		{name: "no address", plug: Plug{ContainerID: "c1", Name: "net1", Bridge: DefaultBridge, MTU: 1500}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if slices.ContainsFunc(tt.ips, netip.Addr.Is6) {
				needIPv6(t)
			}
			k, pod := newHost(t), newNamespace(t)
			got, err := k.Attach(t.Context(), pod, tt.plug)
			if err != nil {
				t.Fatal(err)
			}
			ips, err := podIPs(pod, tt.plug.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(tt.ips, ips, sameAddr); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tt.routes, podRoutes(t, pod)); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			checkEnds(t, k, pod, tt.plug, got)
			if err := k.Detach(t.Context(), got.HostName); err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff([]string{DefaultBridge, "lo"}, linkNames(t, k.host)); diff != "" {
				t.Errorf("links of the host after Detach (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff([]string{"lo"}, linkNames(t, pod)); diff != "" {
				t.Errorf("links of the pod after Detach (-want +got):\n%s", diff)
			}
		})
	}
}

// checkEnds looks at both ends of an interface.
func checkEnds(t *testing.T, k *Kernel, pod *Namespace, p Plug, got Plugged) {
	t.Helper()
	inside, outside := linkNamed(t, pod, p.Name).Attrs(), linkNamed(t, k.host, got.HostName).Attrs()
	want := Plugged{HostName: HostName(p.ContainerID, p.Name), HostIndex: outside.Index, MAC: inside.HardwareAddr.String(), MTU: p.MTU}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if p.MAC != nil && inside.HardwareAddr.String() != p.MAC.String() {
		t.Errorf("mac %s, want %s", inside.HardwareAddr, p.MAC)
	}
	for _, a := range []*netlink.LinkAttrs{inside, outside} {
		if a.MTU != p.MTU || a.Flags&net.FlagUp == 0 {
			t.Errorf("%s: mtu %d, flags %v, want %d and up", a.Name, a.MTU, a.Flags, p.MTU)
		}
	}
	if lo := linkNamed(t, pod, "lo").Attrs(); lo.Flags&net.FlagUp == 0 {
		t.Error("lo is down in the pod")
	}
	if bridge := linkNamed(t, k.host, p.Bridge).Attrs(); outside.MasterIndex != bridge.Index {
		t.Errorf("host end is on link %d, want %d", outside.MasterIndex, bridge.Index)
	}
	links, err := k.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := []HostLink{{Name: got.HostName, Index: got.HostIndex, ContainerID: p.ContainerID, Interface: p.Name, Master: outside.MasterIndex, Bridge: DefaultBridge, Up: true}}
	if diff := gocmp.Diff(ours, links); diff != "" {
		t.Errorf("Links (-want +got):\n%s", diff)
	}
}

// untouched asserts that a failed Attach left nothing.
func untouched(t *testing.T, k *Kernel, pod *Namespace, host, inside []string) {
	t.Helper()
	if diff := gocmp.Diff(host, linkNames(t, k.host)); diff != "" {
		t.Errorf("links of the host (-before +after):\n%s", diff)
	}
	if diff := gocmp.Diff(inside, linkNames(t, pod)); diff != "" {
		t.Errorf("links of the pod (-before +after):\n%s", diff)
	}
}

func TestAttachRefuses(t *testing.T) {
	k, pod := newHost(t), newNamespace(t)
	host, inside := linkNames(t, k.host), linkNames(t, pod)
	edit := func(change func(*Plug)) Plug {
		p := plugFor("c1", "10.244.1.5/32")
		change(&p)
		return p
	}
	tests := []struct {
		name string
		plug Plug
		want error
		says string
	}{
		{"no bridge", edit(func(p *Plug) { p.Bridge = "br9" }), ErrNoBridge, "br9"},
		{"a link that is no bridge", edit(func(p *Plug) { p.Bridge = "lo" }), unix.EOPNOTSUPP, "eth0"},
		{"mtu above the bridge's", edit(func(p *Plug) { p.MTU = 9000 }), ErrInvalid, "9000 of eth0 must not be above the 1500 bytes of bridge fairlead0"},
		{"name is taken", edit(func(p *Plug) { p.Name = "lo" }), ErrExists, "lo in the namespace at"},
		{"no name", edit(func(p *Plug) { p.Name = "" }), ErrInvalid, "must not be empty"},
		{"long name", edit(func(p *Plug) { p.Name = "interface-number-1" }), ErrInvalid, "at most 15 bytes"},
		{"slash in name", edit(func(p *Plug) { p.Name = "a/b" }), ErrInvalid, "slash"},
		{"no container", edit(func(p *Plug) { p.ContainerID = "" }), ErrInvalid, "container ID"},
		{"long container", edit(func(p *Plug) { p.ContainerID = strings.Repeat("x", 250) }), ErrInvalid, "9 bytes too long"},
		{"group MAC", edit(func(p *Plug) { p.MAC = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} }), ErrInvalid, "01:00:5e:00:00:01"},
		{"no mtu", edit(func(p *Plug) { p.MTU = 0 }), ErrInvalid, "mtu 0 of eth0 must be from 68"},
		{"mtu too small for IPv6", edit(func(p *Plug) { p.Addresses[0] = mustPrefix("fd00::1/128"); p.Gateways = nil; p.MTU = 1000 }), ErrInvalid, "at least 1280"},
		{"address without value", edit(func(p *Plug) { p.Addresses[0] = netip.Prefix{} }), ErrInvalid, "address"},
		{"gateway of the other family", edit(func(p *Plug) { p.Gateways[0] = mustAddr("fe80::1") }), ErrInvalid, "fe80::1"},
		{"host bits in a route", edit(func(p *Plug) { p.Routes = []Route{{Destination: mustPrefix("10.0.0.1/8")}} }), ErrInvalid, "10.0.0.0/8"},
		{"mixed route", edit(func(p *Plug) {
			p.Routes = []Route{{Destination: mustPrefix("fd00::/8"), Gateway: mustAddr("10.0.0.1")}}
		}), ErrInvalid, "its own family"},
		{"two default routes", edit(func(p *Plug) { p.Gateways = append(p.Gateways, mustAddr("169.254.1.2")) }), unix.EEXIST, "0.0.0.0/0 via 169.254.1.2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := k.Attach(t.Context(), pod, tt.plug)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("error %v, want %v with %q", err, tt.want, tt.says)
			}
			fits(t, err)
			untouched(t, k, pod, host, inside)
		})
	}
	t.Run("the host's own namespace", func(t *testing.T) {
		if _, err := k.Attach(t.Context(), k.host, plugFor("c1", "10.244.1.5/32")); !errors.Is(err, ErrNotNamespace) {
			t.Errorf("error %v, want ErrNotNamespace", err)
		}
		untouched(t, k, pod, host, inside)
	})
}

// A host end left by an attempt that was never recorded is in nobody's way.
func TestAttachOverLeftover(t *testing.T) {
	k, pod := newHost(t), newNamespace(t)
	plug := plugFor("c1", "10.244.1.5/32")
	first, err := k.Attach(t.Context(), pod, plug)
	if err != nil {
		t.Fatal(err)
	}
	second, err := k.Attach(t.Context(), pod, plug)
	if err != nil {
		t.Fatalf("over a leftover in the same namespace: %v", err)
	}
	if second.HostName != first.HostName || second.HostIndex == first.HostIndex {
		t.Errorf("first %+v, second %+v: want the same name on a new link", first, second)
	}
	other := newNamespace(t)
	if _, err := k.Attach(t.Context(), other, plug); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "another namespace") {
		t.Errorf("while it lives in another namespace: %v, want ErrExists", err)
	}
	checkEnds(t, k, pod, plug, second)
	untouched(t, k, other, []string{DefaultBridge, first.HostName, "lo"}, []string{"lo"})
}

// The interface is there, but not by us: ADD fails and leaves it alone.
func TestAttachSparesOthers(t *testing.T) {
	k, pod := newHost(t), newNamespace(t)
	in(t, pod, func() error {
		c, err := dial()
		if err != nil {
			return err
		}
		defer c.close()
		return c.do(createBridge("eth0", bridgeMAC("eth0"), 1500, false)...)
	})
	host, inside := linkNames(t, k.host), linkNames(t, pod)
	_, err := k.Attach(t.Context(), pod, plugFor("c1", "10.244.1.5/32"))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "eth0 in the namespace at") {
		t.Errorf("eth0 of another program: %v, want ErrExists", err)
	}
	untouched(t, k, pod, host, inside)

	pod = newNamespace(t)
	steps(t, k, createBridge(HostName("c1", "eth0"), bridgeMAC("x"), 1500, false)...)
	host = linkNames(t, k.host)
	_, err = k.Attach(t.Context(), pod, plugFor("c1", "10.244.1.5/32"))
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "not ours") {
		t.Errorf("host end of another program: %v, want ErrExists", err)
	}
	untouched(t, k, pod, host, []string{"lo"})
}

// Some runtimes switch IPv6 off in every namespace.
func TestAttachWhereIPv6IsOff(t *testing.T) {
	needIPv6(t)
	for _, addresses := range [][]string{{"fd00:1::5/128"}, {"10.244.1.5/32", "fd00:1::5/128"}} {
		t.Run(strings.Join(addresses, " "), func(t *testing.T) {
			k, pod := newHost(t), newNamespace(t)
			in(t, pod, func() error {
				_, err := setSysctl("net/ipv6/conf/default/disable_ipv6", "1")
				return err
			})
			if _, err := k.Attach(t.Context(), pod, plugFor("c1", addresses...)); err != nil {
				t.Fatal(err)
			}
			ips, err := podIPs(pod, "eth0")
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

// An address is usable when Attach returns: nothing waits for duplicate address
// detection (a pod start went from 3 s to 16 s, kubernetes#54651).
func TestAttachWithoutDAD(t *testing.T) {
	needIPv6(t)
	k, pod := newHost(t), newNamespace(t)
	if _, err := k.Attach(t.Context(), pod, plugFor("c1", "fd00:1::5/128")); err != nil {
		t.Fatal(err)
	}
	in(t, pod, func() error {
		c, err := net.ListenPacket("udp", "[fd00:1::5]:4242")
		if err != nil {
			return err
		}
		return c.Close()
	})
	addrs, err := openHandle(t, pod).AddrList(linkNamed(t, pod, "eth0"), unix.AF_INET6)
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

// The next pod with an address is reached at once, though the host knows the
// last one's MAC.
func TestAddressOfTheLastPod(t *testing.T) {
	needIPv6(t)
	for _, address := range []string{"10.244.1.5/32", "fd00:1::5/128"} {
		t.Run(address, func(t *testing.T) {
			k := newNode(t)
			state := HostState{
				Bridge: DefaultBridge, MTU: 1500,
				Gateways: []netip.Addr{mustAddr("169.254.1.1"), mustAddr("fe80::1")},
				Local: []LocalBlock{
					{Prefix: mustPrefix("10.244.1.0/26"), Source: mustAddr("192.0.2.1")},
					{Prefix: mustPrefix("fd00:1::/122"), Source: mustAddr("fd00:99::1")},
				},
			}
			steps(t, k, addAddress(1, mustPrefix("192.0.2.1/32"), 0), addAddress(1, mustPrefix("fd00:99::1/128"), 0))
			if _, err := k.ApplyHost(t.Context(), state); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"first", "second"} {
				pod := newNamespace(t)
				plugged, err := k.Attach(t.Context(), pod, plugFor(id, address))
				if err != nil {
					t.Fatal(err)
				}
				if err := talk(t, k.host, pod, mustPrefix(address).Addr(), time.Second); err != nil {
					t.Errorf("%s pod: %v", id, err)
				}
				if err := k.Detach(t.Context(), plugged.HostName); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Who adds a route later need not know that a gateway is on the link: each of them is
// reached by a route of its own. A network may have that route already.
func TestGatewaysCanBeUsed(t *testing.T) {
	needIPv6(t)
	k, pod := newHost(t), newNamespace(t)
	plug := Plug{
		ContainerID: "c1", Name: "eth0", Bridge: DefaultBridge, MTU: 1500,
		Addresses: []netip.Prefix{mustPrefix("10.244.1.5/32"), mustPrefix("fd00:1::5/128")},
		Gateways:  []netip.Addr{mustAddr("169.254.1.1"), mustAddr("fd00:9::1")},
		Routes: []Route{
			{Destination: mustPrefix("192.0.2.0/24"), Gateway: mustAddr("169.254.1.1")},
			{Destination: mustPrefix("198.51.100.1/32")},
			{Destination: mustPrefix("203.0.113.0/24"), Gateway: mustAddr("198.51.100.1")},
		},
	}
	if _, err := k.Attach(t.Context(), pod, plug); err != nil {
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
	in(t, pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, g := range plug.Gateways {
			// As the plugin sbr does it, in a table of its own.
			r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(defaultRoute(g)), Gw: g.AsSlice(), Table: 100}
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("route via %s: %w", g, err)
			}
		}
		return nil
	})
	seen, err := Inspect(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	others := []Route{{Destination: mustPrefix("0.0.0.0/0"), Gateway: mustAddr("169.254.1.1")}, {Destination: mustPrefix("::/0"), Gateway: mustAddr("fd00:9::1")}}
	if diff := gocmp.Diff(others, seen["eth0"].OtherRoutes, gocmp.Comparer(func(a, b Route) bool { return a == b })); diff != "" {
		t.Errorf("routes of other tables (-want +got):\n%s", diff)
	}
	main := append(want, "the kernel's to fe80::/64")
	if n := len(seen["eth0"].Routes); n != len(main) {
		t.Errorf("%d routes of the main table, want %q: %v", n, main, seen["eth0"].Routes)
	}
}
