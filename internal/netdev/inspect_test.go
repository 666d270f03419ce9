package netdev

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInspect(t *testing.T) {
	needIPv6(t)
	k := newHost(t)
	ns := newNamespace(t)
	mac, _ := net.ParseMAC("0a:58:0a:f4:00:05")
	p := Plug{
		ContainerID: "c1", Name: "eth0", Bridge: DefaultBridge, MAC: mac, MTU: 1400,
		Addresses: []netip.Prefix{mustPrefix("10.244.0.5/32"), mustPrefix("fd00::5/128")},
		Gateways:  []netip.Addr{mustAddr("169.254.1.1"), mustAddr("fe80::1")},
		Routes:    []Route{{Destination: mustPrefix("192.0.2.0/24"), Gateway: mustAddr("169.254.1.1")}},
	}
	plugged, err := k.Attach(t.Context(), ns, p)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Inspect(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if lo, ok := all["lo"]; !ok || !lo.Up {
		t.Errorf("lo is %+v", lo)
	}
	eth0 := all["eth0"]
	if eth0.MAC != mac.String() || eth0.MTU != 1400 || !eth0.Up || eth0.Peer != plugged.HostIndex {
		t.Errorf("eth0 is %+v, plugged %+v", eth0, plugged)
	}
	for _, a := range p.Addresses {
		if !slices.Contains(eth0.Addresses, a) {
			t.Errorf("addresses %v lack %s", eth0.Addresses, a)
		}
	}
	for _, r := range append(p.Routes,
		Route{Destination: mustPrefix("0.0.0.0/0"), Gateway: mustAddr("169.254.1.1")},
		Route{Destination: mustPrefix("::/0"), Gateway: mustAddr("fe80::1")},
	) {
		if !slices.Contains(eth0.Routes, r) {
			t.Errorf("routes %v lack %v", eth0.Routes, r)
		}
	}
}

func TestMendHostEnd(t *testing.T) {
	k := newHost(t)
	plugged, err := k.Attach(t.Context(), newNamespace(t), benchPlug(1))
	if err != nil {
		t.Fatal(err)
	}
	want := LinkState{Index: plugged.HostIndex, Up: true, Master: DefaultBridge}
	see := func(want LinkState) {
		t.Helper()
		got, err := k.LinkState(plugged.HostName)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	links := func(want HostLink) {
		t.Helper()
		got, err := k.Links(t.Context())
		if err != nil || len(got) != 1 || got[0].Up != want.Up || got[0].Bridge != want.Bridge {
			t.Errorf("links %+v, %v; want one, up %v, on %q", got, err, want.Up, want.Bridge)
		}
	}
	see(want)
	links(HostLink{Up: true, Bridge: DefaultBridge})
	h := openHandle(t, k.host)
	link := linkNamed(t, k.host, plugged.HostName)
	if err := errors.Join(h.LinkSetNoMaster(link), h.LinkSetDown(link)); err != nil {
		t.Fatal(err)
	}
	see(LinkState{Index: plugged.HostIndex})
	links(HostLink{})
	for range 2 {
		if err := k.MendHostEnd(plugged.HostName, DefaultBridge); err != nil {
			t.Fatal(err)
		}
		see(want)
		if port, err := h.LinkGetProtinfo(link); err != nil || !port.Hairpin {
			t.Errorf("port %+v, %v; want it to reflect", port, err)
		}
	}

	if err := k.MendHostEnd(plugged.HostName, "br9"); !errors.Is(err, ErrNoBridge) {
		t.Errorf("without a bridge: %v", err)
	}
	if err := k.MendHostEnd("eth0", DefaultBridge); !errors.Is(err, ErrInvalid) {
		t.Errorf("a link that is no host end: %v", err)
	}
	if _, err := k.LinkState("none9"); !errors.Is(err, ErrNoLink) {
		t.Errorf("a link that is missing: %v", err)
	}
}

func BenchmarkInspect(b *testing.B) {
	k := newHost(b)
	ns := newNamespace(b)
	plugged, err := k.Attach(context.Background(), ns, benchPlug(1))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Inspect(b.Context(), ns); err != nil {
			b.Fatal(err)
		}
		if _, err := k.LinkState(plugged.HostName); err != nil {
			b.Fatal(err)
		}
	}
}
