package policies

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/test/nettest"
)

// TestNothingPassesBesideTheRoute: where the forward hook drops all, no frame of a pod arrives at another pod
// of its node, with any destination and protocol, and whether the node's netfilter sees bridged
// packets or not (defects.md F0).
func TestNothingPassesBesideTheRoute(t *testing.T) {
	n := newNodes(t, 1)[0]
	a, b := n.pod(t, "a", "", 5), n.pod(t, "b", "", 6)
	mac := func(p *pod) net.HardwareAddr { return nettest.LinkNamed(t, p.ns, "eth0").Attrs().HardwareAddr }
	local := func(p *pod) netip.Addr { return link.EUI64(mac(p)) }
	out, in := packetSocket(t, a.ns), packetSocket(t, b.ns)
	all, every := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	type packet struct {
		name     string
		to       net.HardwareAddr
		kind     uint16
		src, dst netip.Addr
	}
	var packets []packet
	for family, kind := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
		packets = append(packets, packet{"its own address", routed.GatewayMAC, kind, a.addresses[family].Addr(), b.addresses[family].Addr()})
	}
	for name, to := range map[string]net.HardwareAddr{"gateway": routed.GatewayMAC, "the pod": mac(b)} {
		packets = append(packets,
			packet{"link-local, to the MAC of " + name, to, unix.ETH_P_IPV6, local(a), local(b)},
			packet{"link-local to its address, to the MAC of " + name, to, unix.ETH_P_IPV6, local(a), b.addresses[1].Addr()},
			packet{"an unknown protocol, to the MAC of " + name, to, 0x88b5, netip.Addr{}, netip.Addr{}})
	}
	packets = append(packets,
		packet{"ff02::1", every, unix.ETH_P_IPV6, local(a), nettest.Addr("ff02::1")},
		packet{"255.255.255.255", all, unix.ETH_P_IP, a.addresses[0].Addr(), nettest.Addr("255.255.255.255")},
		packet{"224.0.0.1", net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, unix.ETH_P_IP, a.addresses[0].Addr(), nettest.Addr("224.0.0.1")},
		packet{"an unknown protocol to all", all, 0x88b5, netip.Addr{}, netip.Addr{}})
	arrives := func(p packet) bool {
		mark := fmt.Appendf(nil, "mark of %s %s %s", p.name, p.dst, time.Now())
		payload := mark
		if p.src.IsValid() {
			payload = ipPacket(p.src, p.dst, mark)
		}
		frame := binary.BigEndian.AppendUint16(append(bytes.Clone(p.to), mac(a)...), p.kind)
		for range 3 {
			if _, err := unix.Write(out, append(frame, payload...)); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, 2048)
		for {
			n, err := unix.Read(in, buf)
			if err != nil {
				return false
			}
			if bytes.Contains(buf[:n], mark) {
				return true
			}
		}
	}
	for i, p := range packets { // at first the routed packets alone arrive
		if got := arrives(p); got != (i < 2) {
			t.Errorf("without a policy: %s %v arrives: %v", p.name, p.dst, got)
		}
	}
	for _, call := range []string{"0", "1"} {
		n.callNetfilter(t, call)
		nftables(t, n.Namespace(), `table inet policies { chain forward { type filter hook forward priority 0; policy drop; }
		}`, "-f", "-")
		for _, p := range packets {
			if arrives(p) {
				t.Errorf("with a policy that drops all, bridge-nf-call %s: %s %v arrives", call, p.name, p.dst)
			}
		}
	}
}

// packetSocket opens a socket for whole frames on eth0 of a pod.
func packetSocket(t *testing.T, ns *link.Namespace) (fd int) {
	t.Helper()
	nettest.In(t, ns, func() (err error) {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// ipPacket returns a UDP datagram, without a checksum of its own.
func ipPacket(src, dst netip.Addr, payload []byte) []byte {
	udp := append(binary.BigEndian.AppendUint16([]byte{0, 9, 0, 9}, uint16(8+len(payload))), 0, 0)
	udp = append(udp, payload...)
	if src.Is6() {
		head := append(binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(udp))), unix.IPPROTO_UDP, 64)
		return append(append(append(head, src.AsSlice()...), dst.AsSlice()...), udp...)
	}
	head := append(binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(udp))), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	head = append(append(head, src.AsSlice()...), dst.AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(head); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(head[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(head[10:], ^uint16(sum))
	return append(head, udp...)
}
