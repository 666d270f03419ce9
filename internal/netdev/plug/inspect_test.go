package plug

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func TestInspect(t *testing.T) {
	nettest.NeedIPv6(t)
	k := newPlugHost(t)
	ns := nettest.NewNamespace(t)
	mac, _ := net.ParseMAC("0a:58:0a:f4:00:05")
	p := Interface{
		ContainerID: "c1", Name: "eth0", Binding: onBridge(nettest.DefaultBridge), MAC: mac, MTU: 1400,
		Addresses: []netip.Prefix{nettest.Prefix("10.244.0.5/32"), nettest.Prefix("fd00::5/128")},
		Gateways:  []netip.Addr{nettest.Addr("169.254.1.1"), nettest.Addr("fe80::1")},
		Routes:    []Route{{Destination: nettest.Prefix("192.0.2.0/24"), Gateway: nettest.Addr("169.254.1.1")}},
	}
	if err := k.Make(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	all, err := (Namespaces{}).Inspect(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	if lo, ok := all["lo"]; !ok || !lo.Up {
		t.Errorf("lo is %+v", lo)
	}
	eth0 := all["eth0"]
	if eth0.MAC != mac.String() || eth0.MTU != 1400 || !eth0.Up || eth0.Peer != hostEnd(t, k, p).Index {
		t.Errorf("eth0 is %+v", eth0)
	}
	for _, a := range p.Addresses {
		if !slices.Contains(eth0.Addresses, a) {
			t.Errorf("addresses %v lack %s", eth0.Addresses, a)
		}
	}
	for _, r := range append(p.Routes,
		Route{Destination: nettest.Prefix("0.0.0.0/0"), Gateway: nettest.Addr("169.254.1.1")},
		Route{Destination: nettest.Prefix("::/0"), Gateway: nettest.Addr("fe80::1")},
	) {
		if !slices.Contains(eth0.Routes, r) {
			t.Errorf("routes %v lack %v", eth0.Routes, r)
		}
	}
}

func TestMendHostEnd(t *testing.T) {
	k := newPlugHost(t)
	if err := k.Make(t.Context(), nettest.NewNamespace(t), benchPlug(1)); err != nil {
		t.Fatal(err)
	}
	end := hostEnd(t, k, benchPlug(1))
	want := link.State{Index: end.Index, Up: true, Master: nettest.DefaultBridge, Group: link.GroupPort, Type: "veth"}
	see := func(want link.State) {
		t.Helper()
		got, err := k.LinkState(end.Name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	found := func(up bool, bridge string) {
		t.Helper()
		got := find(t, k)
		if len(got) != 1 || got[0].Up != up || got[0].Bridge != bridge {
			t.Errorf("found %+v; want one, up %v, on %q", got, up, bridge)
		}
	}
	see(want)
	found(true, nettest.DefaultBridge)
	h := nettest.OpenHandle(t, k.Namespace())
	dev := nettest.LinkNamed(t, k.Namespace(), end.Name)
	if err := errors.Join(h.LinkSetNoMaster(dev), h.LinkSetDown(dev)); err != nil {
		t.Fatal(err)
	}
	see(link.State{Index: end.Index, Group: link.GroupPort, Type: "veth"})
	found(false, "")
	for range 2 {
		if err := k.repairHostEnd(end.Name, nettest.DefaultBridge, nil); err != nil {
			t.Fatal(err)
		}
		see(want)
		if port, err := h.LinkGetProtinfo(dev); err != nil || !port.Hairpin {
			t.Errorf("port %+v, %v; want it to reflect", port, err)
		}
	}

	if err := k.repairHostEnd(end.Name, "br9", nil); !errors.Is(err, link.ErrNoBridge) {
		t.Errorf("without a bridge: %v", err)
	}
	if err := k.repairHostEnd("eth0", nettest.DefaultBridge, nil); !errors.Is(err, link.ErrInvalid) {
		t.Errorf("a link that is no host end: %v", err)
	}
	if _, err := k.LinkState("none9"); !errors.Is(err, link.ErrNoLink) {
		t.Errorf("a link that is missing: %v", err)
	}
}

func BenchmarkInspect(b *testing.B) {
	k := newPlugHost(b)
	ns := nettest.NewNamespace(b)
	if err := k.Make(b.Context(), ns, benchPlug(1)); err != nil {
		b.Fatal(err)
	}
	end := hostEnd(b, k, benchPlug(1))
	for b.Loop() {
		if _, err := (Namespaces{}).Inspect(b.Context(), ns); err != nil {
			b.Fatal(err)
		}
		if _, err := k.LinkState(end.Name); err != nil {
			b.Fatal(err)
		}
	}
}

// A host end outside of its group is a difference of each kind whose sources the packet filter checks.
// Those of a port of Open vSwitch are checked by Neutron, and its group says nothing.
func TestGroupOfHostEnd(t *testing.T) {
	s := nettest.NewNode(t)
	end := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: HostName("c1", "eth0")}, PeerName: "peer"}
	nettest.Must(t, nettest.OpenHandle(t, s.Namespace()).LinkAdd(end))
	for kind, checked := range map[string]bool{KindBridge: true, KindRouted: true, KindOVS: false} {
		_, diffs, _, err := NewVeths(s).EndDifferences(Made{Kind: kind, Name: "eth0", HostLink: end.Name}, Inspected{})
		if got := strings.Contains(strings.Join(diffs, " "), "is in group 0"); err != nil || got != checked {
			t.Errorf("%s: differences %q, %v; want the group among them: %v", kind, diffs, err, checked)
		}
	}
}
