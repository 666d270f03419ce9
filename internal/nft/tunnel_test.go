package nft_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	vxlanPort = 4789
	vni       = 158
	// tunnelMTU leaves room for the tunnel over IPv6.
	tunnelMTU = 1430
)

// remote has the blocks of a node that does not exist: the test sends in its name.
var remote = []netip.Prefix{netip.MustParsePrefix("10.244.7.0/26"), netip.MustParsePrefix("fd00:17::/64")}

// tunnel creates the node's end of the tunnel, for both families, with the world's
// addresses as the remote node's underlay.
func (l *lab) tunnel() {
	l.t.Helper()
	want := l.hostState()
	want.Tunnel = &host.Tunnel{
		VNI: vni, Port: vxlanPort, MAC: host.TunnelMAC(l.node.Name), MTU: 1500,
		Underlay: []netip.Addr{l.node.V4.Addr(), l.node.V6.Addr()},
	}
	for i, underlay := range []netip.Addr{l.world.V4.Addr(), l.world.V6.Addr()} {
		want.Remote = append(want.Remote, host.RemoteNode{Underlay: underlay, MAC: host.TunnelMAC("remote"), Blocks: remote[i : i+1]})
	}
	l.apply(want)
	n := l.settled
	n.Underlay = want.Tunnel.Underlay
	l.set(n)
}

// setPeers sets the addresses of the other nodes.
func (l *lab) setPeers(peers ...netip.Addr) {
	l.t.Helper()
	n := l.settled
	n.Peers = peers
	l.set(n)
}

// forgery returns a tunnel payload that delivers a datagram from an address of the remote
// node to a pod.
func (l *lab) forgery(to *sandbox, is4 bool, payload string) []byte {
	source, target := remote[0].Addr().Next(), to.v4()
	if !is4 {
		source, target = remote[1].Addr().Next(), to.v6()
	}
	inner := append([]byte{}, host.TunnelMAC(l.node.Name)...)
	inner = append(inner, host.TunnelMAC("remote")...)
	inner = append(inner, datagram(source, target, 7777, payload)...)
	return append([]byte{8, 0, 0, 0, 0, 0, vni, 0}, inner...)
}

// datagram returns a UDP datagram in IP, after the Ethernet type.
func datagram(from, to netip.Addr, port uint16, payload string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 1234)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_UDP, 0, 0, byte(len(udp)>>8), byte(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], checksum(pseudo, udp))
	if !from.Is4() {
		b := []byte{0x86, 0xdd, 0x60, 0, 0, 0, byte(len(udp) >> 8), byte(len(udp)), unix.IPPROTO_UDP, 64}
		return append(append(append(b, from.AsSlice()...), to.AsSlice()...), udp...)
	}
	total := 20 + len(udp)
	b := []byte{0x45, 0, byte(total >> 8), byte(total), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(append([]byte{8, 0}, b...), udp...)
}

func checksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, p := range parts {
		for i := 0; i < len(p); i += 2 {
			sum += uint32(p[i]) << 8
			if i+1 < len(p) {
				sum += uint32(p[i+1])
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// listen opens a UDP socket in a namespace.
func listen(t *testing.T, ns *netlab.Namespace, at string) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// gets reports whether a datagram with the given text reaches a socket. It sends the
// datagram repeatedly, each time followed by a marker that does reach it: after three
// markers the datagram would have arrived.
func gets(t *testing.T, at net.PacketConn, text string, send, marker func()) bool {
	t.Helper()
	buf := make([]byte, 4096)
	for markers, deadline := 0, time.Now().Add(limit); time.Now().Before(deadline); {
		send()
		marker()
		for {
			_ = at.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			n, _, err := at.ReadFrom(buf)
			if err != nil {
				break
			}
			switch {
			case strings.HasPrefix(string(buf[:n]), text):
				return true
			case string(buf[:n]) == "marker":
				markers++
			}
		}
		if markers >= 3 {
			return false
		}
	}
	t.Fatal("nothing gets through")
	return false
}

// sender returns a function that sends datagrams from a namespace and ignores errors: a
// rejected datagram counts as a lost one.
func sender(t *testing.T, from *netlab.Namespace, source, to string) func(payload []byte) {
	t.Helper()
	return segmented(t, from, source, to, 0)
}

// segmented is sender for payloads of several datagrams, each of some bytes; 0 is one datagram.
func segmented(t *testing.T, from *netlab.Namespace, source, to string, each int) func(payload []byte) {
	t.Helper()
	var c net.Conn
	err := from.Do(func() (err error) {
		d := net.Dialer{}
		if source != "" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(source))
		}
		d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			controlErr := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
				if each > 0 {
					err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, each))
				}
			})
			return errors.Join(err, controlErr)
		}
		c, err = d.DialContext(context.Background(), "udp", to)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(payload []byte) { _, _ = c.Write(payload) }
}

func at(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }

// attempt is one way to the tunnel's port.
type attempt struct {
	name       string
	from       *netlab.Namespace
	source, to string
	pad        int // extra bytes, so that it is fragmented
	// segments sends it as the second of two datagrams in one packet (UDP_SEGMENT). The first is of
	// another network.
	segments bool
	through  bool
}

// try sends a forgery with each inner family by each attempt.
func (l *lab) try(t *testing.T, target, marking *sandbox, all []attempt) {
	t.Helper()
	socket := listen(t, target.Namespace, "[::]:7777")
	defer socket.Close()
	mark := sender(t, marking.Namespace, "", at(target.v4(), 7777))
	for _, a := range all {
		for _, is4 := range []bool{true, false} {
			if a.pad > 0 && !is4 {
				continue // too long for the bridge, and IPv6 is not fragmented on the way
			}
			text := fmt.Sprintf("%s %v", a.name, is4)
			send := sender(t, a.from, a.source, a.to)
			forged := l.forgery(target, is4, text+strings.Repeat(".", a.pad))
			if a.segments {
				send = segmented(t, a.from, a.source, a.to, len(forged))
				forged = append(make([]byte, len(forged)), forged...)
			}
			got := gets(t, socket, text, func() { send(forged) }, func() { mark([]byte("marker")) })
			if got != a.through {
				t.Errorf("%s, IPv4 inside %v: delivered %v, want %v", a.name, is4, got, a.through)
			}
		}
	}
}

// proxy returns the rules of a Service, as kube-proxy writes them, that redirect matching
// packets to an address.
func proxy(family, match, to string) string {
	return fmt.Sprintf(`table %s proxy {
		chain services { type nat hook prerouting priority dstnat; %s dnat to %s; }
		chain leaving { type nat hook postrouting priority srcnat; ct status dnat masquerade; }
	}
`, family, match, to)
}

// Only a datagram from a node to this node's tunnel is decapsulated. A datagram that a
// pod sends to the tunnel's port, directly or through a Service, is dropped (own review
// 5).
func TestOnlyNodesSendIntoTheTunnel(t *testing.T) {
	l := newLab(t)
	l.tunnel()
	// A pod with the tunnel's port as its host port does not receive the tunnel's
	// datagrams (own review 6).
	evil, target := l.pod(5, nft.Port{Protocol: "udp", HostPort: vxlanPort, ContainerPort: 5555}), l.pod(6)
	world, node := l.world, l.node
	run(t, node.Namespace, "", "ip", "address", "add", "192.168.77.99/24", "dev", netlab.Uplink)
	run(t, world.Namespace, "", "ip", "address", "add", "192.168.77.66/24", "dev", netlab.BridgeName)
	run(t, node.Namespace, proxy("ip", "ip daddr 172.30.0.1 udp dport 53", at(node.V4.Addr(), vxlanPort))+
		proxy("ip6", "ip6 daddr fd00:30::1 udp dport 53", at(node.V6.Addr(), vxlanPort))+
		"add rule ip proxy services ip daddr 192.168.77.11 udp dport 30053 dnat to "+at(node.V4.Addr(), vxlanPort)+"\n", "nft", "-f", "-")
	l.setPeers(world.V4.Addr(), world.V6.Addr())
	node4, node6 := at(node.V4.Addr(), vxlanPort), at(node.V6.Addr(), vxlanPort)
	l.try(t, target, evil, []attempt{
		{name: "node", from: world.Namespace, source: at(world.V4.Addr(), 0), to: node4, through: true},
		{name: "node6", from: world.Namespace, to: node6, through: true},
		{name: "node, in pieces", from: world.Namespace, source: at(world.V4.Addr(), 0), to: node4, pad: 1700, through: true},
		{name: "no node", from: world.Namespace, source: "192.168.77.66:0", to: node4},
		{name: "no node, behind another", from: world.Namespace, source: "192.168.77.66:0", to: node4, segments: true},
		{name: "no node, behind another, through a node port", from: world.Namespace, source: "192.168.77.66:0", to: "192.168.77.11:30053", segments: true},
		{name: "pod", from: evil.Namespace, to: node4},
		{name: "pod6", from: evil.Namespace, to: node6},
		{name: "pod, behind another", from: evil.Namespace, to: node4, segments: true},
		{name: "pod6, behind another", from: evil.Namespace, to: node6, segments: true},
		{name: "pod through a service, behind another", from: evil.Namespace, to: "172.30.0.1:53", segments: true},
		{name: "pod6 through a service, behind another", from: evil.Namespace, to: "[fd00:30::1]:53", segments: true},
		{name: "pod to another address, behind another", from: evil.Namespace, to: "192.168.77.99:4789", segments: true},
		{name: "pod, in pieces", from: evil.Namespace, to: node4, pad: 1700},
		{name: "pod6, in pieces", from: evil.Namespace, to: node6, pad: 1700},
		{name: "pod to the gateway", from: evil.Namespace, to: "169.254.1.1:4789"},
		{name: "pod6 to the gateway", from: evil.Namespace, to: "[fe80::1%eth0]:4789"},
		{name: "pod to everybody", from: evil.Namespace, to: "255.255.255.255:4789"},
		{name: "pod6 to everybody", from: evil.Namespace, to: "[ff02::1%eth0]:4789"},
		{name: "pod to another address", from: evil.Namespace, to: "192.168.77.99:4789"},
		{name: "node to another address", from: world.Namespace, source: at(world.V4.Addr(), 0), to: "192.168.77.99:4789"},
		{name: "node to everybody", from: world.Namespace, source: at(world.V4.Addr(), 0), to: "192.168.77.255:4789"},
		{name: "pod through a service", from: evil.Namespace, to: "172.30.0.1:53"},
		{name: "pod6 through a service", from: evil.Namespace, to: "[fd00:30::1]:53"},
		{name: "node through a node port", from: world.Namespace, source: at(world.V4.Addr(), 0), to: "192.168.77.11:30053"},
		{name: "the node itself", from: node.Namespace, to: node4},
	})
	l.setPeers(world.V6.Addr()) // a machine that left is no longer a node
	l.try(t, target, evil, []attempt{
		{name: "former node", from: world.Namespace, source: at(world.V4.Addr(), 0), to: node4},
		{name: "node6 yet", from: world.Namespace, to: node6, through: true},
	})
}

// A pod's datagram to another node's tunnel does not leave its own node: masqueraded with
// the node's address the other node would accept it (own review 5).
func TestPodsDoNotSendIntoAnotherTunnel(t *testing.T) {
	labs := newLabs(t, 2)
	first, second := labs[0], labs[1]
	for _, l := range labs {
		l.tunnel()
	}
	evil, target, beside := first.pod(5), second.pod(5), second.pod(6)
	node4, node6 := at(second.node.V4.Addr(), vxlanPort), at(second.node.V6.Addr(), vxlanPort)
	run(t, first.node.Namespace, proxy("ip", "ip daddr 172.30.0.1 udp dport 53", node4)+
		proxy("ip6", "ip6 daddr fd00:30::1 udp dport 53", node6)+
		"add rule ip proxy services ip daddr 192.168.77.11 udp dport 30053 dnat to "+node4+"\n"+
		"add rule ip proxy leaving ip saddr 192.168.77.99 masquerade\n", "nft", "-f", "-")
	second.setPeers(first.node.V4.Addr(), first.node.V6.Addr())
	attempts := []attempt{
		{name: "node", from: first.node.Namespace, to: node4, through: true},
		{name: "node6", from: first.node.Namespace, to: node6, through: true},
		{name: "pod", from: evil.Namespace, to: node4},
		{name: "pod6", from: evil.Namespace, to: node6},
		{name: "pod, behind another", from: evil.Namespace, to: node4, segments: true},
		{name: "pod6, behind another", from: evil.Namespace, to: node6, segments: true},
		{name: "pod6 through a service, behind another", from: evil.Namespace, to: "[fd00:30::1]:53", segments: true},
		{name: "pod through a service", from: evil.Namespace, to: "172.30.0.1:53"},
		{name: "pod6 through a service", from: evil.Namespace, to: "[fd00:30::1]:53"},
		{name: "world through a node port", from: first.world.Namespace, source: at(first.world.V4.Addr(), 0), to: "192.168.77.11:30053"},
		{name: "the host as IPVS passes on", from: first.node.Namespace, source: "192.168.77.99:0", to: node4},
	}
	run(t, first.node.Namespace, "", "ip", "address", "add", "192.168.77.99/24", "dev", netlab.Uplink)
	// The first node does not know the second, so it drops nothing: the second accepts
	// every datagram.
	for i := range attempts {
		attempts[i].through = true
	}
	second.try(t, target, beside, attempts)
	first.setPeers(second.node.V4.Addr(), second.node.V6.Addr())
	for i := range attempts {
		attempts[i].through = strings.HasPrefix(attempts[i].name, "node")
	}
	second.try(t, target, beside, attempts)
	// Pods may use a tunnel of their own, also with the same number.
	listener := listen(t, first.pod(6).Namespace, "[::]:4789")
	send := sender(t, evil.Namespace, "", at(netip.MustParseAddr("10.244.0.6"), vxlanPort))
	mine := []byte{8, 0, 0, 0, 0, 0, vni, 0, 'm', 'i', 'n', 'e'}
	if !gets(t, listener, string(mine), func() { send(mine) }, func() {}) {
		t.Error("pods do not reach each other at the tunnel's port")
	}
}
