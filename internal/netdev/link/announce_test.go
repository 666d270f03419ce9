package link_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// A neighbor that remembers the MAC of an earlier link learns the one of an announced
// address at once.
func TestAnnounce(t *testing.T) {
	nettest.NeedIPv6(t)
	host, pod := nettest.NewNode(t), nettest.NewNamespace(t)
	peer := host.Namespace()
	nettest.AddCable(t, peer, "fl0", 0, nettest.Cable{To: pod, Name: "eth0", MTU: 1500})
	mac := nettest.LinkNamed(t, pod, "eth0").Attrs().HardwareAddr
	addresses := []netip.Addr{nettest.Addr("10.9.0.2"), nettest.Addr("fd09::2")}
	h := nettest.OpenHandle(t, peer)
	fl0 := nettest.LinkNamed(t, peer, "fl0")
	if err := errors.Join(h.LinkSetUp(fl0), nettest.OpenHandle(t, pod).LinkSetUp(nettest.LinkNamed(t, pod, "eth0"))); err != nil {
		t.Fatal(err)
	}
	until := func(done func() bool, missing func() string) {
		t.Helper()
		next := time.NewTicker(time.Millisecond)
		defer next.Stop()
		deadline := time.After(5 * time.Second)
		for !done() {
			select {
			case <-next.C:
			case <-deadline:
				t.Fatal(missing())
			}
		}
	}
	// Before, the kernel drops packets of IPv6.
	until(func() bool { return nettest.LinkNamed(t, peer, "fl0").Attrs().OperState == netlink.OperUp }, func() string { return "the link does not come up" })
	earlier := net.HardwareAddr{0x02, 0, 0, 0, 0, 0x99}
	for _, a := range addresses {
		err := h.NeighSet(&netlink.Neigh{LinkIndex: fl0.Attrs().Index, IP: a.AsSlice(), HardwareAddr: earlier, State: netlink.NUD_REACHABLE})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := pod.Announce("eth0", mac, addresses); err != nil {
		t.Fatal(err)
	}
	var known map[string]string
	until(func() bool {
		known = map[string]string{}
		all, err := h.NeighList(fl0.Attrs().Index, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			known[n.IP.String()] = n.HardwareAddr.String()
		}
		return known[addresses[0].String()] == mac.String() && known[addresses[1].String()] == mac.String()
	}, func() string { return fmt.Sprintf("the neighbor knows %v; want %v for each address", known, mac) })
	if err := pod.Announce("eth9", mac, addresses); !errors.Is(err, link.ErrNoLink) {
		t.Errorf("announced on a link that is missing: %v", err)
	}
	if err := pod.Announce("eth0", nil, addresses); err == nil {
		t.Error("announced without a MAC")
	}
}
