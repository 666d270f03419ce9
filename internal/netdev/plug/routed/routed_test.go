package routed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

const (
	podV4, podV6 = "10.244.1.5/32", "fd00:10:244::5/128"
)

// interfaceOf returns eth0 with some addresses.
func interfaceOf(addresses ...string) plug.Interface {
	i := plugtest.Default(v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}})
	i.Addresses, i.Gateways = nil, nil
	i.MAC = net.HardwareAddr{0x0a, 0x58, 10, 244, 1, 5} // a plan gives every veth one
	for _, text := range addresses {
		p := netip.MustParsePrefix(text)
		i.Addresses = append(i.Addresses, p)
		i.Gateways = append(i.Gateways, gatewayOf(p.Addr()))
	}
	return i
}

func gatewayOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return GatewayV4
	}
	return GatewayV6
}

// leg returns an interface that has the addresses of another.
func leg() plug.Interface {
	i := interfaceOf()
	i.Name = "fl0"
	i.Binding.Routed.Of = []string{"192.0.2.7", "2001:db8::7"}
	i.Routes = []plug.Route{
		{Destination: netip.MustParsePrefix("10.96.0.0/12"), Gateway: GatewayV4},
		{Destination: netip.MustParsePrefix("fd00:10:96::/108"), Gateway: GatewayV6},
	}
	return i
}

// onEnd calls do with the host end.
func onEnd(do func(*netlink.Handle, netlink.Link) error) func(*netlink.Handle, plug.Made) error {
	return func(h *netlink.Handle, m plug.Made) error {
		end, err := h.LinkByName(m.HostLink)
		if err != nil {
			return err
		}
		return do(h, end)
	}
}

// routesGo deletes the routes to a host end.
func routesGo(h *netlink.Handle, end netlink.Link) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := h.RouteListFiltered(family, &netlink.Route{LinkIndex: end.Attrs().Index, Protocol: RouteProtocol}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return err
		}
		for i := range all {
			if err := h.RouteDel(&all[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// neighboursGo deletes the neighbours of a host end, gatewayGoes that by which the host is the gateway.
func neighboursGo(h *netlink.Handle, end netlink.Link) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := h.NeighList(end.Attrs().Index, family)
		if err != nil {
			return err
		}
		for i := range all {
			if err := h.NeighDel(&all[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func gatewayGoes(h *netlink.Handle, end netlink.Link) error {
	proxies, err := h.NeighProxyList(end.Attrs().Index, unix.AF_INET)
	for i := range proxies {
		err = errors.Join(err, h.NeighDel(&proxies[i]))
	}
	addresses, listErr := h.AddrList(end, unix.AF_INET6)
	for i := range addresses {
		err = errors.Join(err, h.AddrDel(end, &addresses[i]))
	}
	return errors.Join(err, listErr)
}

func newKind(s *link.Sockets) plug.Kind { return New(s, nil) }

func TestContract(t *testing.T) {
	for name, i := range map[string]plug.Interface{"IPv4": interfaceOf(podV4), "IPv6": interfaceOf(podV6), "dual stack": interfaceOf(podV4, podV6), "leg": leg()} {
		t.Run(name, func(t *testing.T) {
			plugtest.Run(t, plugtest.Case{
				New: newKind, Interface: i, HostLink: true,
				Invalid: map[string]plug.Interface{
					"binding must be routed":     plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{}; i.Routes, i.Gateways = nil, nil }),
					"mtu of " + i.Name + " must": plugtest.Changed(i, func(i *plug.Interface) { i.MTU = 0 }),
					"must not be empty unless": plugtest.Changed(i, func(i *plug.Interface) {
						i.Addresses, i.Gateways, i.Routes, i.Binding.Routed = nil, nil, nil, &v1alpha1.RoutedBinding{}
					}),
					`routed.of "x" of`: plugtest.Changed(i, func(i *plug.Interface) {
						i.Binding.Routed = &v1alpha1.RoutedBinding{Of: append(slices.Clone(i.Binding.Routed.Of), "x")}
					}),
				},
				Breaks: []plugtest.Break{
					{Name: "down", Difference: "is down", Repairs: true, Do: onEnd((*netlink.Handle).LinkSetDown)},
					{Name: "down and up", Difference: "the host has no route to", Repairs: true, Do: onEnd(func(h *netlink.Handle, end netlink.Link) error {
						return errors.Join(h.LinkSetDown(end), h.LinkSetUp(end))
					})},
					{Name: "in another group", Difference: "is in group 0, not 1", Repairs: true, Do: onEnd(func(h *netlink.Handle, end netlink.Link) error { return h.LinkSetGroup(end, 0) })},
					{Name: "routes are gone", Difference: "the host has no route to", Repairs: true, Do: onEnd(routesGo)},
					{Name: "neighbours are gone", Difference: "or no neighbour", Repairs: true, Do: onEnd(neighboursGo)},
					{Name: "the gateway is gone", Difference: "or no neighbour", Repairs: true, Do: onEnd(gatewayGoes)},
					{Name: "on a bridge", Difference: `is a port of "br9"`, Repairs: true, Do: onEnd(func(h *netlink.Handle, end netlink.Link) error {
						other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br9"}}
						return errors.Join(h.LinkAdd(other), h.LinkSetMaster(end, other))
					})},
					{Name: "host end is gone", Difference: "is missing", Do: onEnd((*netlink.Handle).LinkDel)},
				},
				Leave: func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface) {
					tb.Helper()
					nettest.AddCable(tb, s.Namespace(), plug.RoutedName(i.ContainerID, i.Name), 0, nettest.Cable{To: ns, Name: i.Name, MTU: i.MTU})
				},
			})
		})
	}
}

// pod is a sandbox with an interface, on a host.
type pod struct {
	kind plug.Kind
	host *link.Sockets
	ns   *link.Namespace
	made plug.Made
}

func plugged(t *testing.T, host *link.Sockets, i plug.Interface) *pod {
	t.Helper()
	p := &pod{kind: newKind(host), host: host, ns: nettest.NewNamespace(t)}
	p.made = p.kind.Plan(p.ns.Place(), i)
	if err := p.kind.Make(t.Context(), p.ns, i); err != nil {
		t.Fatal(err)
	}
	return p
}

// owner returns the name of the host end that has a route to an address; "" for none.
func owner(t *testing.T, host *link.Sockets, address string) string {
	t.Helper()
	h := nettest.OpenHandle(t, host.Namespace())
	a := netip.MustParsePrefix(address).Addr()
	all, err := h.RouteListFiltered(link.Family(a), &netlink.Route{Dst: link.ToIPNet(netip.PrefixFrom(a, a.BitLen())), Protocol: RouteProtocol}, netlink.RT_FILTER_DST|netlink.RT_FILTER_PROTOCOL)
	if err != nil || len(all) > 1 {
		t.Fatalf("routes to %s: %v, %v", address, all, err)
	}
	if len(all) == 0 {
		return ""
	}
	l, err := h.LinkByIndex(all[0].LinkIndex)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Name
}

// Two sandboxes have one address while a pod is replaced: the later has the way. Neither the DEL nor
// the sweep of the earlier takes it away.
func TestTwoSandboxesWithOneAddress(t *testing.T) {
	host := nettest.NewHost(t)
	i := interfaceOf(podV4, podV6)
	first := plugged(t, host, i)
	i.ContainerID = "c2"
	second := plugged(t, host, i)
	want := func(when string, p *pod) {
		t.Helper()
		for _, a := range []string{podV4, podV6} {
			if got := owner(t, host, a); got != p.made.HostLink {
				t.Errorf("%s: %s is routed to %q, want %q", when, a, got, p.made.HostLink)
			}
		}
	}
	want("made", second)
	for range 2 {
		for _, p := range []*pod{first, second} {
			if repaired, err := p.kind.(plug.Repairer).Repair(t.Context(), p.made); err != nil || repaired {
				t.Errorf("Repair: %t, %v", repaired, err)
			}
		}
	}
	want("after the sweep", second)
	if err := first.kind.Remove(t.Context(), first.made); err != nil {
		t.Fatal(err)
	}
	want("after the DEL of the earlier", second)
}

// The way back to the first sandbox is found if the later one has failed.
func TestLaterSandboxFails(t *testing.T) {
	host := nettest.NewHost(t)
	i := interfaceOf(podV4, podV6)
	first := plugged(t, host, i)
	i.ContainerID = "c2"
	second := plugged(t, host, i)
	if err := second.kind.Remove(t.Context(), second.made); err != nil {
		t.Fatal(err)
	}
	if repaired, err := first.kind.(plug.Repairer).Repair(t.Context(), first.made); err != nil || !repaired {
		t.Errorf("Repair: %t, %v", repaired, err)
	}
	if got := owner(t, host, podV6); got != first.made.HostLink {
		t.Errorf("routed to %q", got)
	}
}

// The host and its pods reach each other, without a neighbour that anybody asks for: neither ARP nor
// the settings for it matter.
func TestReach(t *testing.T) {
	for _, ignore := range []string{"0", "1", "2", "8"} {
		t.Run("arp_ignore="+ignore, func(t *testing.T) {
			host := forwarding(t, ignore)
			var pods []*pod
			for n := range 2 {
				i := interfaceOf(fmt.Sprintf("10.244.1.%d/32", 5+n), fmt.Sprintf("fd00:10:244::%d/128", 5+n))
				i.ContainerID = fmt.Sprint("c", n)
				i.MAC = net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}
				pods = append(pods, plugged(t, host, i))
			}
			for _, to := range []string{"10.244.1.6", "fd00:10:244::6"} {
				if !talks(t, pods[0].ns, pods[1].ns, to) {
					t.Errorf("no answer from %s", to)
				}
			}
			for _, p := range pods {
				for _, at := range []*link.Namespace{p.ns, host.Namespace()} {
					wantPermanent(t, at)
				}
			}
		})
	}
}

// talks reports whether datagrams from a namespace get to an address of another. The first may be lost:
// the kernel sets a new link in motion a little later.
func talks(t *testing.T, from, to *link.Namespace, address string) bool {
	t.Helper()
	var server net.PacketConn
	if err := to.Do(func() (err error) { server, err = net.ListenPacket("udp", net.JoinHostPort(address, "7")); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	err := from.Do(func() error {
		conn, err := net.Dial("udp", net.JoinHostPort(address, "7"))
		if err != nil {
			return err
		}
		defer conn.Close()
		came := make(chan error, 1)
		go func() {
			_, _, err := server.ReadFrom(make([]byte, 9))
			came <- err
		}()
		for {
			_, _ = conn.Write([]byte("x"))
			select {
			case err := <-came:
				return err
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

// wantPermanent asserts that a namespace has asked for no neighbour of a routed interface.
func wantPermanent(t *testing.T, ns *link.Namespace) {
	t.Helper()
	h := nettest.OpenHandle(t, ns)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		all, err := h.NeighList(0, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
				t.Errorf("neighbour %v is not permanent", n)
			}
		}
	}
}

// forwarding returns a host that forwards packets.
func forwarding(t *testing.T, arpIgnore string) *link.Sockets {
	t.Helper()
	host := nettest.NewHost(t)
	for name, value := range map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/arp_ignore": arpIgnore} {
		if err := host.In(func() error { _, err := link.SetSysctl(name, value); return err }); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

// No name of another kind's host end begins as those of routed interfaces do.
func TestNames(t *testing.T) {
	for n := range 5000 {
		id := fmt.Sprint("c", n)
		if name := plug.HostName(id, "eth0"); strings.HasPrefix(name, plug.RoutedPrefix) || !plug.IsHostName(name) {
			t.Errorf("%s is the name of a bridge's host end", name)
		}
		if name := plug.RoutedName(id, "eth0"); !strings.HasPrefix(name, plug.RoutedPrefix) || !plug.IsHostName(name) || len(name) > link.MaxNameLength {
			t.Errorf("%s is the name of a routed host end", name)
		}
	}
}

// A guest behind a bridge in the sandbox has no permanent neighbours. It finds the gateways by ARP and
// NDP, whatever the host's settings of ARP are.
func TestGuestFindsTheGateways(t *testing.T) {
	for _, ignore := range []string{"0", "1", "2", "8"} {
		t.Run("arp_ignore="+ignore, func(t *testing.T) {
			host := forwarding(t, ignore)
			h := nettest.OpenHandle(t, host.Namespace())
			lo, err := h.LinkByName("lo")
			if err != nil {
				t.Fatal(err)
			}
			// The host part of the daemon makes it.
			way := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: link.ToIPNet(netip.PrefixFrom(GatewayV4, 32)), Scope: netlink.SCOPE_LINK}
			if err := errors.Join(h.LinkSetUp(lo), h.RouteAdd(way)); err != nil {
				t.Fatal(err)
			}
			guest := plugged(t, host, interfaceOf(podV4, podV6))
			i := interfaceOf("10.244.1.6/32", "fd00:10:244::6/128")
			i.ContainerID = "c2"
			other := plugged(t, host, i)
			inside := nettest.OpenHandle(t, guest.ns)
			for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
				all, err := inside.NeighList(0, family)
				for n := range all {
					err = errors.Join(err, inside.NeighDel(&all[n]))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, to := range []string{"10.244.1.6", "fd00:10:244::6"} {
				if !talks(t, guest.ns, other.ns, to) {
					t.Errorf("no answer from %s", to)
				}
			}
			err = host.Namespace().Do(func() error {
				raw, err := os.ReadFile("/proc/sys/net/ipv4/neigh/" + guest.made.HostLink + "/proxy_delay")
				if string(raw) != "0\n" {
					t.Errorf("the host answers for the gateway after up to %q/100 s", raw)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A host that switches IPv6 off on new links has pods with IPv6.
func TestNewLinksWithoutIPv6(t *testing.T) {
	host := forwarding(t, "0")
	nettest.In(t, host.Namespace(), func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	})
	first := plugged(t, host, interfaceOf(podV4, podV6))
	i := interfaceOf("10.244.1.6/32", "fd00:10:244::6/128")
	i.ContainerID = "c2"
	second := plugged(t, host, i)
	if !talks(t, first.ns, second.ns, "fd00:10:244::6") {
		t.Error("no answer")
	}
}

// A route of another program to an address stays, and the error names it.
func TestRouteOfAnotherProgram(t *testing.T) {
	for _, address := range []string{podV4, podV6} {
		host := forwarding(t, "0")
		nettest.AddDevice(t, host, "theirs")
		h := nettest.OpenHandle(t, host.Namespace())
		theirs := &netlink.Route{
			LinkIndex: nettest.LinkNamed(t, host.Namespace(), "theirs").Attrs().Index, Dst: link.ToIPNet(nettest.Prefix(address)), Protocol: unix.RTPROT_STATIC,
		}
		nettest.Must(t, errors.Join(h.LinkSetUp(nettest.LinkNamed(t, host.Namespace(), "theirs")), h.RouteAdd(theirs)))
		nettest.In(t, host.Namespace(), func() error { // also where the kind has to try again
			return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		})
		before := nettest.LinkNames(t, host.Namespace())
		err := New(host, nil).Make(t.Context(), nettest.NewNamespace(t), interfaceOf(podV4, podV6))
		if err == nil || !strings.Contains(err.Error(), "route to "+address+" that another program made") {
			t.Errorf("Make: %v", err)
		}
		if now := nettest.LinkNames(t, host.Namespace()); !slices.Equal(before, now) {
			t.Errorf("links after Make: %v, before: %v", now, before)
		}
		if got := nettest.Routes(t, host.Namespace(), unix.RTPROT_STATIC); !slices.Contains(got, nettest.Prefix(address)) {
			t.Errorf("routes of others: %v", got)
		}
	}
}

// The host forwards what comes by a host end, and sends no redirects to it.
func TestSettingsOfHostEnds(t *testing.T) {
	host := forwarding(t, "0")
	end := plugged(t, host, interfaceOf(podV4, podV6)).made.HostLink
	nettest.In(t, host.Namespace(), func() error {
		for setting, want := range map[string]string{"forwarding": "1\n", "send_redirects": "0\n"} {
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + end + "/" + setting)
			if err != nil {
				return err
			}
			if string(got) != want {
				t.Errorf("%s is %q, want %q", setting, got, want)
			}
		}
		return nil
	})
}
