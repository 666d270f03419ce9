package nft_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/netlab"
)

// Frames that a pod may forge. Each ends in its number.

func ether(from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from...)
	return append(binary.BigEndian.AppendUint16(frame, kind), payload...)
}

func arp(sender net.HardwareAddr, ip netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(b, sender...)
	b = append(b, ip.AsSlice()...)
	return append(b, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1)
}

func ipv4(from netip.Addr) []byte {
	b := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}
	b = append(b, from.AsSlice()...)
	b = append(b, 255, 255, 255, 255)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return append(b, 0, 9, 0, 9, 0, 8, 0, 0)
}

// ipv6 returns a packet with ICMPv6 of a type, about a target.
func ipv6(from netip.Addr, icmp byte, target netip.Addr) []byte {
	b := []byte{0x60, 0, 0, 0, 0, 24, 58, 255}
	b = append(b, from.AsSlice()...)
	b = append(b, netip.MustParseAddr("ff02::1").AsSlice()...)
	b = append(b, icmp, 0, 0, 0, 0, 0, 0, 0)
	return append(b, target.AsSlice()...)
}

// packetSocket opens a socket for whole frames on eth0 of a sandbox.
func packetSocket(t *testing.T, ns *netlab.Namespace) int {
	t.Helper()
	var fd int
	err := ns.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// arrived reports whether got is the frame sent: the packet filter cuts off the bytes
// after the end of an IP packet, and a packet socket does not receive a VLAN tag.
func arrived(got, sent []byte) bool {
	const tagAt, tagLength = 12, 4
	if binary.BigEndian.Uint16(sent[tagAt:]) == unix.ETH_P_8021Q {
		sent = slices.Delete(slices.Clone(sent), tagAt, tagAt+tagLength)
	}
	return len(got) >= 42 && bytes.HasPrefix(sent, got)
}

// passes reports whether a frame gets from one pod to another. The allowed frame, sent
// after it, shows when it would have arrived.
func passes(t *testing.T, from, to int, frame, allowed []byte) bool {
	t.Helper()
	return passesFrom(t, from, from, to, frame, allowed)
}

// passesFrom is passes with the allowed frame from another pod.
func passesFrom(t *testing.T, from, allowedFrom, to int, frame, allowed []byte) bool {
	t.Helper()
	buf := make([]byte, 2048)
	seen := false
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		_, err := unix.Write(from, frame)
		_, allowedErr := unix.Write(allowedFrom, allowed)
		if err := errors.Join(err, allowedErr); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := unix.Read(to, buf)
			if err != nil {
				break // nothing arrived, so the frames are sent again
			}
			switch {
			case arrived(buf[:n], frame):
				seen = true
			case arrived(buf[:n], allowed):
				return seen
			}
		}
	}
	t.Fatal("nothing gets through")
	return false
}

func TestSourceChecks(t *testing.T) {
	l := newLab(t)
	a, b := l.port(5), l.port(6)
	lost := l.port(7)
	l.keeper.SetPod(lost.id, nft.Pod{Links: []nft.Link{{Name: lost.link.Name, Check: nft.CheckLost}}})
	unknown := l.port(8)
	l.keeper.RemovePod(unknown.id)
	l.wait()

	own, other := a.link.MAC, b.link.MAC
	gateway4, gateway6 := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")
	local := netip.MustParseAddr(fmt.Sprintf("fe80::%02x%02x:%02xff:fe%02x:%02x%02x", own[0]^2, own[1], own[2], own[3], own[4], own[5]))
	const (
		ip4, ip6, arpKind                          = unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP
		solicit, advert, router, redirect, echo, m = 135, 136, 134, 137, 128, 143
	)
	none := netip.IPv6Unspecified()
	from, to := packetSocket(t, a.Namespace), packetSocket(t, b.Namespace)
	for n, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"its own IPv4", ether(own, ip4, ipv4(a.v4())), true},
		{"another's IPv4", ether(own, ip4, ipv4(b.v4())), false},
		{"loopback", ether(own, ip4, ipv4(netip.MustParseAddr("127.0.0.1"))), false},
		{"no IPv4", ether(own, ip4, ipv4(netip.IPv4Unspecified())), false},
		{"another's MAC", ether(other, ip4, ipv4(a.v4())), false},
		{"another altogether", ether(other, ip4, ipv4(b.v4())), false},
		{"ARP", ether(own, arpKind, arp(own, a.v4())), true},
		{"ARP for another", ether(own, arpKind, arp(own, b.v4())), false},
		{"ARP for the gateway", ether(own, arpKind, arp(own, gateway4)), false},
		{"ARP with another's MAC inside", ether(own, arpKind, arp(other, a.v4())), false},
		{"ARP with another's MAC outside", ether(other, arpKind, arp(own, a.v4())), false},
		{"ARP probe", ether(own, arpKind, arp(own, netip.IPv4Unspecified())), true},
		{"ARP probe with another's MAC", ether(own, arpKind, arp(other, netip.IPv4Unspecified())), false},
		{"its own IPv6", ether(own, ip6, ipv6(a.v6(), echo, none)), true},
		{"its own link-local IPv6", ether(own, ip6, ipv6(local, echo, none)), true},
		{"another's IPv6", ether(own, ip6, ipv6(b.v6(), echo, none)), false},
		{"the gateway's IPv6", ether(own, ip6, ipv6(gateway6, echo, none)), false},
		{"IPv6 with another's MAC", ether(other, ip6, ipv6(a.v6(), echo, none)), false},
		{"solicitation", ether(own, ip6, ipv6(a.v6(), solicit, gateway6)), true},
		{"solicitation before it has an address", ether(own, ip6, ipv6(none, solicit, local)), true},
		{"multicast report before it has an address", ether(own, ip6, ipv6(none, m, none)), true},
		{"anything else before it has an address", ether(own, ip6, ipv6(none, echo, none)), false},
		{"advertisement", ether(own, ip6, ipv6(a.v6(), advert, a.v6())), true},
		{"advertisement of its link-local address", ether(own, ip6, ipv6(local, advert, local)), true},
		{"advertisement of another", ether(own, ip6, ipv6(a.v6(), advert, b.v6())), false},
		{"advertisement of the gateway", ether(own, ip6, ipv6(local, advert, gateway6)), false},
		{"router advertisement", ether(own, ip6, ipv6(local, router, none)), false},
		{"redirect", ether(own, ip6, ipv6(local, redirect, a.v6())), false},
		{"VLAN tag", ether(own, unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, ipv4(a.v4())...)), false},
		{"another protocol", ether(own, unix.ETH_P_MPLS_UC, ipv4(a.v4())), false},
	} {
		number := []byte{0xf1, 0xee, byte(n)}
		allowed := ether(own, arpKind, append(arp(own, a.v4()), append(number, 1)...))
		if got := passes(t, from, to, append(c.frame, append(number, 0)...), allowed); got != c.want {
			t.Errorf("%s: passes: %v, want %v", c.name, got, c.want)
		}
	}
	// A sandbox whose record was lost may go on sending from any address; an unknown
	// sandbox may not send.
	if !passes(t, packetSocket(t, lost.Namespace), to, ether(own, ip4, ipv4(b.v4())), ether(lost.link.MAC, arpKind, arp(lost.link.MAC, lost.v4()))) {
		t.Error("a sandbox whose record was lost sends nothing")
	}
	silent := packetSocket(t, unknown.Namespace)
	frame := ether(unknown.link.MAC, arpKind, arp(unknown.link.MAC, unknown.v4()))
	if _, err := unix.Write(silent, frame); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for {
		n, err := unix.Read(to, buf)
		if err != nil {
			break
		}
		if arrived(buf[:n], frame) {
			t.Error("a link that is not known sends")
		}
	}
}

// A link may be checked for its MAC alone, or not at all. A link without addresses that is
// fully checked sends nothing.
func TestExtentOfSourceChecks(t *testing.T) {
	l := newLab(t)
	a, b, free, silent, trunk := l.port(5), l.port(6), l.port(7), l.port(8), l.port(9)
	tagged := trunk.link
	tagged.Tagged = true
	l.keeper.SetPod(trunk.id, nft.Pod{Links: []nft.Link{tagged}})
	l.keeper.SetPod(a.id, nft.Pod{Links: []nft.Link{{Name: a.link.Name, MAC: a.link.MAC, Check: nft.CheckMAC}}})
	l.keeper.SetPod(free.id, nft.Pod{Links: []nft.Link{{Name: free.link.Name, Check: nft.CheckNone}}})
	l.keeper.SetPod(silent.id, nft.Pod{Links: []nft.Link{{Name: silent.link.Name, MAC: silent.link.MAC}}})
	l.wait()
	const ip4, ip6, arpKind = unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP
	const advert, router = 136, 134
	gateway6 := netip.MustParseAddr("fe80::1")
	to, allowedFrom := packetSocket(t, b.Namespace), packetSocket(t, a.Namespace)
	mac, other := a.link.MAC, b.link.MAC
	for n, c := range []struct {
		name  string
		pod   *sandbox
		frame []byte
		want  bool
	}{
		{"MAC: another's IPv4", a, ether(mac, ip4, ipv4(b.v4())), true},
		{"MAC: another's ARP", a, ether(mac, arpKind, arp(mac, b.v4())), true},
		{"MAC: another's IPv6", a, ether(mac, ip6, ipv6(b.v6(), 128, gateway6)), true},
		{"MAC: router advertisement", a, ether(mac, ip6, ipv6(gateway6, router, gateway6)), true},
		{"MAC: advertisement of another", a, ether(mac, ip6, ipv6(gateway6, advert, gateway6)), true},
		{"MAC: VLAN tag", a, ether(mac, unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, ipv4(a.v4())...)), true},
		{"MAC: another protocol", a, ether(mac, unix.ETH_P_MPLS_UC, ipv4(a.v4())), true},
		{"MAC: another's MAC", a, ether(other, ip4, ipv4(a.v4())), false},
		{"MAC: another's MAC in IPv6", a, ether(other, ip6, ipv6(a.v6(), 128, gateway6)), false},
		{"MAC: another's MAC in ARP", a, ether(other, arpKind, arp(other, a.v4())), false},
		{"trunk: VLAN tag", trunk, ether(tagged.MAC, unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, ipv4(b.v4())...)), true},
		{"trunk: VLAN tag, another's MAC", trunk, ether(other, unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, ipv4(b.v4())...)), false},
		{"trunk: its own IPv4", trunk, ether(tagged.MAC, ip4, ipv4(trunk.v4())), true},
		{"trunk: another's IPv4", trunk, ether(tagged.MAC, ip4, ipv4(b.v4())), false},
		{"trunk: another's ARP", trunk, ether(tagged.MAC, arpKind, arp(tagged.MAC, b.v4())), false},
		{"None: another's MAC", free, ether(other, ip4, ipv4(b.v4())), true},
		{"None: router advertisement", free, ether(other, ip6, ipv6(gateway6, router, gateway6)), true},
		{"Full without addresses: IPv4", silent, ether(silent.link.MAC, ip4, ipv4(silent.v4())), false},
		{"Full without addresses: IPv6", silent, ether(silent.link.MAC, ip6, ipv6(silent.v6(), 128, gateway6)), false},
		{"Full without addresses: ARP", silent, ether(silent.link.MAC, arpKind, arp(silent.link.MAC, silent.v4())), false},
		{"Full without addresses: ARP probe", silent, ether(silent.link.MAC, arpKind, arp(silent.link.MAC, netip.IPv4Unspecified())), false},
		{"Full without addresses: solicitation", silent, ether(silent.link.MAC, ip6, ipv6(netip.IPv6Unspecified(), 135, gateway6)), false},
	} {
		number := []byte{0xf1, 0xef, byte(n)}
		allowed := ether(mac, arpKind, append(arp(mac, a.v4()), append(number, 1)...))
		from := packetSocket(t, c.pod.Namespace)
		witness := from // in the order of its frames
		switch c.pod {
		case silent:
			witness = allowedFrom
		case trunk:
			allowed = ether(tagged.MAC, arpKind, append(arp(tagged.MAC, trunk.v4()), append(number, 1)...))
		}
		if got := passesFrom(t, from, witness, to, append(c.frame, append(number, 0)...), allowed); got != c.want {
			t.Errorf("%s: passes: %v, want %v", c.name, got, c.want)
		}
	}
}
