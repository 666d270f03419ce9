package nft_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/test/netlab"
)

// piece is a fragment of a UDP datagram.
type piece struct {
	at   int // bytes of the datagram before it
	more bool
	data []byte
}

// packet returns a fragment in IP, in Ethernet to the gateway of a pod.
func (p piece) packet(mac net.HardwareAddr, from, to netip.Addr) []byte {
	kind := uint16(unix.ETH_P_IP)
	var ip []byte
	if from.Is4() {
		flags := uint16(p.at / 8)
		if p.more {
			flags |= 0x2000
		}
		ip = binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(p.data)))
		ip = binary.BigEndian.AppendUint16(append(ip, 0x12, 0x34), flags)
		ip = append(append(append(ip, 64, unix.IPPROTO_UDP, 0, 0), from.AsSlice()...), to.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	} else {
		kind = unix.ETH_P_IPV6
		flags := uint16(p.at)
		if p.more {
			flags |= 1
		}
		ip = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(8+len(p.data)))
		ip = append(append(append(ip, unix.IPPROTO_FRAGMENT, 64), from.AsSlice()...), to.AsSlice()...)
		ip = append(binary.BigEndian.AppendUint16(append(ip, unix.IPPROTO_UDP, 0), flags), 0, 0, 0x12, 0x34)
	}
	frame := ether(mac, kind, append(ip, p.data...))
	copy(frame, routed.GatewayMAC)
	return frame
}

// A fragment from another pod's address is dropped: the host puts fragments together whatever link
// they came by, and checks the whole by its last fragment (outside look).
func TestFragmentsAreChecked(t *testing.T) {
	l := newLab(t)
	l.set(l.settled)
	evil, source, target := l.pod(5), l.pod(6), l.pod(7)
	forger, own := packetSocket(t, evil.Namespace), packetSocket(t, source.Namespace)
	socket := listen(t, target.Namespace, "[::]:7777")
	defer socket.Close()
	mark := sender(t, evil.Namespace, "", at(target.v4(), 7777))
	for n, from := range []netip.Addr{source.v4(), source.v6()} {
		to := []netip.Addr{target.v4(), target.v6()}[n]
		whole := datagram(from, to, 7777, strings.Repeat("x", 40)) // after type and header of IP
		whole = whole[len(whole)-48:]
		head := piece{0, true, whole[:24]}.packet(source.link.MAC, from, to)
		tail := piece{24, false, whole[24:]}
		send := func(by int, mac net.HardwareAddr) func() {
			return func() {
				_, _ = unix.Write(by, tail.packet(mac, from, to))
				_, _ = unix.Write(own, head)
			}
		}
		if gets(t, socket, "xxx", send(forger, evil.link.MAC), func() { mark([]byte("marker")) }) {
			t.Errorf("%s: a fragment of another pod is a part of the datagram", from)
		}
		if !gets(t, socket, "xxx", send(own, source.link.MAC), func() {}) {
			t.Errorf("%s: the datagram does not arrive in fragments of its own pod", from)
		}
	}
}

// A packet to the gateway's address goes nowhere. Its route is there for ARP, and leads to the host
// itself (outside look: 254 turns for each packet).
func TestGatewayIsNoDestination(t *testing.T) {
	l := newLab(t)
	l.set(l.settled)
	pod, out := l.pod(5), l.world
	run(t, out.Namespace, "", "ip", "route", "replace", "169.254.1.1/32", "via", l.node.V4.Addr().String())
	for name, ns := range map[string]*netlab.Namespace{"a pod": pod.Namespace, "a machine on the link": out.Namespace} {
		send := sender(t, ns, "", "169.254.1.1:7")
		before, err := l.node.Received("lo")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			send([]byte("x"))
		}
		mark := sender(t, ns, "", at(l.node.V4.Addr(), 7777))
		socket := listen(t, l.node.Namespace, at(l.node.V4.Addr(), 7777))
		if !gets(t, socket, "last", func() { mark([]byte("last")) }, func() {}) {
			t.Fatal("nothing arrives at the node")
		}
		_ = socket.Close()
		if after, err := l.node.Received("lo"); err != nil || after-before > 20 {
			t.Errorf("20 packets of %s are %d on lo, %v", name, after-before, err)
		}
	}
}

// A pod does not lower the MTU of the node's ways to others by a report about a packet that the node
// has not sent (outside look).
func TestReportsOfPods(t *testing.T) {
	l := newLab(t)
	l.set(l.settled)
	pod, node, world := l.pod(5), l.node, l.world
	raw := packetSocket(t, pod.Namespace)
	socket := listen(t, node.Namespace, at(node.V4.Addr(), 7777))
	defer socket.Close()
	mark := sender(t, pod.Namespace, "", at(node.V4.Addr(), 7777))
	for n, to := range []netip.Addr{node.V4.Addr(), node.V6.Addr()} {
		about := []netip.Addr{world.V4.Addr(), world.V6.Addr()}[n]
		from := []netip.Addr{pod.v4(), pod.v6()}[n]
		frame := ether(pod.link.MAC, []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[n], tooBig(from, to, about))
		copy(frame, routed.GatewayMAC)
		_, _ = unix.Write(raw, frame)
		if !gets(t, socket, "last", func() { mark([]byte("last")) }, func() {}) {
			t.Fatal("nothing arrives at the node")
		}
		if way := run(t, node.Namespace, "", "ip", "route", "get", about.String()); strings.Contains(way, "mtu") {
			t.Errorf("after the report of a pod the way to %s is %s", about, way)
		}
	}
}

// tooBig returns an ICMP error from a pod to a node: its packet to an address was too big.
func tooBig(from, node, about netip.Addr) []byte {
	if from.Is4() {
		inner := []byte{0x45, 0, 5, 120, 0, 1, 0x40, 0, 64, unix.IPPROTO_ICMP, 0, 0}
		inner = append(append(inner, node.AsSlice()...), about.AsSlice()...)
		binary.BigEndian.PutUint16(inner[10:], checksum(inner))
		icmp := append([]byte{3, 4, 0, 0, 0, 0, 2, 40}, append(inner, 0, 0, 0, 0, 0, 1, 0, 1)...)
		binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
		ip := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(icmp)))
		ip = append(append(append(ip, 0, 1, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0), from.AsSlice()...), node.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return append(ip, icmp...)
	}
	inner := append(append([]byte{0x60, 0, 0, 0, 5, 120, unix.IPPROTO_ICMPV6, 64}, node.AsSlice()...), about.AsSlice()...)
	icmp := append([]byte{2, 0, 0, 0, 0, 0, 5, 0}, append(inner, 129, 0, 0, 0, 0, 1, 0, 1)...)
	pseudo := append(append(from.AsSlice(), node.AsSlice()...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(icmp[2:], checksum(pseudo, icmp))
	ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 64}, from.AsSlice()...)
	return append(append(ip, node.AsSlice()...), icmp...)
}
