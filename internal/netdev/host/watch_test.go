package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// startWatch runs WatchHost until the test ends.
func startWatch(t *testing.T, k *Kernel) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan struct{}, 4096), make(chan error, 1)
	go func() {
		done <- k.WatchHost(ctx, func(bool) {
			select {
			case events <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("WatchHost: %v", err)
		}
	})
	await(t, events, "listening")
	return events
}

func await(t *testing.T, events <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-events:
	case <-time.After(5 * time.Second):
		t.Fatalf("not told of: %s", what)
	}
}

// quiesce reads events until the watch has no more to report. It makes a change that is
// reported (a stray route of Fairlead, and its removal) and counts the earlier events.
func quiesce(t *testing.T, h *netlink.Handle, events <-chan struct{}) int {
	t.Helper()
	stray := &netlink.Route{Dst: link.ToIPNet(nettest.Prefix("10.98.7.0/24")), Type: unix.RTN_BLACKHOLE, Protocol: link.RouteProtocol}
	if err := errors.Join(h.RouteAdd(stray), h.RouteDel(stray)); err != nil {
		t.Fatal(err)
	}
	count := 0
	for {
		select {
		case <-events:
			count++
		case <-time.After(300 * time.Millisecond):
			return count - 2
		}
	}
}

func TestWatchHost(t *testing.T) {
	k := newCable(t, 1)[0]
	h := nettest.OpenHandle(t, k.Namespace())
	state := stateOf(0, 2)
	apply(t, k, state)
	events := startWatch(t, k)
	dev := func(name string) netlink.Link {
		l, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	tests := []struct {
		name string
		do   func() error
	}{
		{"route deleted", func() error { return h.RouteDel(&netlink.Route{Dst: link.ToIPNet(blocksOf(1)[0])}) }},
		{"IPv6 route deleted", func() error { return h.RouteDel(&netlink.Route{Dst: link.ToIPNet(blocksOf(1)[1])}) }},
		{"gateway's route deleted", func() error { return dropRoute(t, h, nettest.Prefix("169.254.1.1/32")) }},
		{"uplink mtu", func() error { return h.LinkSetMTU(dev("up0"), 1440) }},
		{"uplink address", func() error {
			return h.AddrAdd(dev("up0"), &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("198.51.100.7/24"))})
		}},
		{"default route", func() error { return h.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 254)}) }},
		{"forwarding", func() error {
			return k.In(func() error {
				_, err := link.SetSysctl("net/ipv4/conf/up0/forwarding", "0")
				return err
			})
		}},
		{"forwarding of all links", func() error {
			return k.In(func() error {
				_, on := link.SetSysctl("net/ipv4/ip_forward", "1")
				_, off := link.SetSysctl("net/ipv4/ip_forward", "0")
				return errors.Join(on, off)
			})
		}},
		{"IPv6 forwarding", func() error {
			return k.In(func() error {
				_, err := link.SetSysctl("net/ipv6/conf/all/forwarding", "0")
				return err
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			quiesce(t, h, events)
			if err := tt.do(); err != nil {
				t.Fatal(err)
			}
			await(t, events, tt.name)
			apply(t, k, state)
			settled(t, k, state)
		})
	}
	// Pods and changes of other programs cause no event.
	quiesce(t, h, events)
	for i := range 5 {
		if err := kindsOf(k).Make(t.Context(), nettest.NewNamespace(t), numberedPlug(i)); err != nil {
			t.Fatal(err)
		}
		if err := unplug(t, k, numberedPlug(i)); err != nil {
			t.Fatal(err)
		}
	}
	foreign := &netlink.Route{Dst: link.ToIPNet(nettest.Prefix("10.98.0.0/16")), Gw: net.IPv4(192, 0, 2, 9)}
	if err := errors.Join(h.RouteAdd(foreign), h.RouteDel(foreign)); err != nil {
		t.Fatal(err)
	}
	if n := quiesce(t, h, events); n != 0 {
		t.Errorf("%d calls for pods and foreign routes, want none", n)
	}
}

// A watch whose buffer overflowed listens anew and notifies.
func TestWatchHostOverrun(t *testing.T) {
	k := newCable(t, 1)[0]
	h := nettest.OpenHandle(t, k.Namespace())
	apply(t, k, stateOf(0, 1))
	ctx, cancel := context.WithCancel(t.Context())
	held, release, after := make(chan struct{}), make(chan struct{}), make(chan struct{}, 64)
	first := true
	done := make(chan error, 1)
	go func() {
		done <- k.watchOnce(ctx, 4<<10, func(bool) {
			if first { // the callback blocks while many events come
				first = false
				close(held)
				<-release
			}
		})
		done <- k.WatchHost(ctx, func(bool) { after <- struct{}{} })
	}()
	<-held
	for range 200 {
		stray := &netlink.Route{Dst: link.ToIPNet(nettest.Prefix("10.99.0.0/16")), Gw: net.IPv4(192, 0, 2, 9), Protocol: link.RouteProtocol}
		if err := errors.Join(h.RouteAdd(stray), h.RouteDel(stray)); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	if err := <-done; !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("after an overrun: %v", err)
	}
	await(t, after, "listening anew")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUplink(t *testing.T) {
	k := newCable(t, 1)[0]
	h := nettest.OpenHandle(t, k.Namespace())
	want := Uplink{
		Name: "up0", Index: nettest.LinkNamed(t, k.Namespace(), "up0").Attrs().Index, MTU: 1450,
		Addresses: []netip.Prefix{nettest.Prefix("192.0.2.1/24"), nettest.Prefix("fd00:99::1/64")},
		Sources:   []netip.Addr{nettest.Addr("192.0.2.1"), nettest.Addr("fd00:99::1")},
	}
	nettest.Steps(t, k.Sockets, link.AddAddress(want.Index, nettest.Prefix("192.0.2.8/24"), 0))
	is := func(name, what string) {
		t.Helper()
		got, err := k.Uplink(t.Context(), name)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if diff := cmp.Diff(want, got, nettest.SameAddr, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	fails := func(name, says string) {
		t.Helper()
		_, err := k.Uplink(t.Context(), name)
		if !errors.Is(err, ErrNoUplink) || !strings.Contains(err.Error(), says) {
			t.Errorf("Uplink(%q): %v, want ErrNoUplink with %q", name, err, says)
		}
	}
	is("up0", "by name")
	is("", "the only one")
	fails("up9", "no interface up9")

	// The host end of a pod does not count.
	apply(t, k, stateOf(0, 1))
	nettest.Must(t, kindsOf(k).Make(t.Context(), nettest.NewNamespace(t), numberedPlug(1)))
	is("", "the only one beside a pod's")

	// A second interface with an address makes the choice ambiguous.
	middle := nettest.NewHost(t)
	nettest.AddCable(t, middle.Namespace(), "port9", nettest.LinkNamed(t, middle.Namespace(), nettest.DefaultBridge).Attrs().Index, nettest.Cable{To: k.Namespace(), Name: "up1", MTU: 1500})
	up1 := nettest.LinkNamed(t, k.Namespace(), "up1").Attrs().Index
	nettest.Steps(t, k.Sockets, link.Raise("up1"), link.AddAddress(up1, nettest.Prefix("198.51.100.1/24"), 0))
	fails("", "(up0, up1): name the one to use")

	// A default route decides, and the lowest metric among several.
	routes := []*netlink.Route{
		{LinkIndex: up1, Gw: net.IPv4(198, 51, 100, 254), Priority: 200},
		{LinkIndex: want.Index, Gw: net.IPv4(192, 0, 2, 254), Priority: 100},
	}
	for _, r := range routes {
		if err := h.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	want.Gateways = []netip.Addr{netip.MustParseAddr("192.0.2.254")}
	is("", "the default route with the lowest metric")
	for _, r := range routes {
		if err := h.RouteDel(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: want.Index, Gw: net.ParseIP("fd00:99::fe")}); err != nil {
		t.Fatal(err)
	}
	want.Gateways = []netip.Addr{netip.MustParseAddr("fd00:99::fe")}
	is("", "the IPv6 default route")
	if err := h.RouteAdd(&netlink.Route{LinkIndex: want.Index, Gw: net.IPv4(192, 0, 2, 253), Priority: 300}); err != nil {
		t.Fatal(err)
	}
	want.Gateways = []netip.Addr{netip.MustParseAddr("192.0.2.253"), netip.MustParseAddr("fd00:99::fe")}
	is("up0", "a default route of each family")

	k = newHostNode(t)
	fails("", "no default route, and no interface")
}
