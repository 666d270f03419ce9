package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
}

// Every path of every network carries each kind of traffic.
func TestMeasure(t *testing.T) {
	needRoot(t)
	figures, err := Measure(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	families := []string{"IPv4", "IPv6"}
	if !netlab.HasIPv6() {
		families = families[:1]
	}
	for _, n := range networks() {
		for _, place := range n.places {
			for _, family := range families {
				for _, kind := range Kinds() {
					if key := (Key{n.name, place, family, kind}); figures[key] <= 0 {
						t.Errorf("%v is %v, want more than 0", key, figures[key])
					}
				}
			}
		}
	}
}

// The measured pods of Fairlead send with their own addresses only, so the source checks
// are in the path.
func TestSourcesAreChecked(t *testing.T) {
	needRoot(t)
	b, err := ours(t.Context(), netlab.HasIPv6(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	for f := range b.lab.Nodes[0].Addresses() {
		from, to := b.ends(SameNode, f)
		forged := address(0, 20, from.address)
		if err := addForged(from.ns, forged); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			from netip.Addr
			want bool
		}{{from.address, true}, {forged, false}} {
			got, err := arrives(from.ns, to, c.from)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("a datagram from %v arrives at %v: %v, want %v", c.from, to.address, got, c.want)
			}
		}
	}
}

func addForged(ns *netlab.Namespace, a netip.Addr) error {
	h, err := ns.Netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	eth, err := h.LinkByName(podLink)
	if err != nil {
		return err
	}
	return addAddress(h, eth.Attrs().Index, a, a.BitLen())
}

// arrives reports whether one of several datagrams from an address arrives.
func arrives(ns *netlab.Namespace, to end, from netip.Addr) (bool, error) {
	at := netip.AddrPortFrom(to.address, port)
	var sender, receiver *net.UDPConn
	err := errors.Join(
		to.ns.Do(func() (err error) {
			receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		}),
		ns.Do(func() (err error) {
			sender, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(at))
			return err
		}))
	if err != nil {
		return false, fmt.Errorf("open sockets: %w", err)
	}
	defer func() { _ = errors.Join(sender.Close(), receiver.Close()) }()
	buf := make([]byte, smallPacket)
	for range 10 {
		if _, err := sender.Write(buf); err != nil {
			return false, err
		}
		if err := receiver.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return false, err
		}
		_, err := receiver.Read(buf)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ECONNREFUSED) {
			return false, err
		}
	}
	return false, nil
}
