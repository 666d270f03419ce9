package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/test/netlab"
)

// sniffTime is how long the receiver listens for a forged packet, which is sent again and
// again.
const sniffTime = 700 * time.Millisecond

// marker returns a random text that identifies forged packets.
func marker() []byte {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return []byte("forged-" + hex.EncodeToString(raw[:]))
}

// arrives sends packets with a marker and reports whether one arrives on a link in a
// network namespace. It fails if no frames of the victim's own traffic are seen there
// meanwhile, because then the absence of the marker would prove nothing.
func arrives(to *netlab.Namespace, link string, mark []byte, send func() error) (bool, error) {
	seen, done, err := onWire(to, link)
	defer done()
	if err != nil {
		return false, fmt.Errorf("listen on %s: %w", link, err)
	}
	others := 0
	for deadline := time.Now().Add(sniffTime); time.Now().Before(deadline) || others == 0; {
		if time.Since(deadline) > stepTimeout {
			return false, errors.New("none of the victim's own frames was seen: nothing would be proved")
		}
		if err := send(); err != nil {
			return false, fmt.Errorf("send a forged packet: %w", err)
		}
		for range 20 {
			frame, err := seen()
			if err != nil {
				return false, err
			}
			if frame == nil {
				break // no more for now
			}
			if bytes.Contains(frame, mark) {
				return true, nil
			}
			others++
		}
	}
	return false, nil
}

func closeFD(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// allFrames is ETH_P_ALL in network byte order.
const allFrames = unix.ETH_P_ALL << 8

// raw sends a frame from a pod's interface.
func raw(from *netlab.Namespace, frame []byte) error {
	return from.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index})
	})
}

// datagram sends a UDP datagram from an ordinary socket, as any program in a pod can.
func datagram(from *netlab.Namespace, to netip.AddrPort, payload []byte) error {
	return from.Do(func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(payload)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) {
			err = nil // the kernel's answer to an earlier datagram
		}
		return err
	})
}

// linkOf returns the MAC of a link in a namespace.
func linkOf(ns *netlab.Namespace, name string) (mac net.HardwareAddr, err error) {
	err = ns.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			mac = i.HardwareAddr
		}
		return err
	})
	return mac, err
}

func ethernet(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	frame := append(append([]byte{}, to...), from...)
	return append(binary.BigEndian.AppendUint16(frame, kind), payload...)
}

// udp returns an IP packet with a UDP datagram in it, of the family of its addresses.
func udp(from, to netip.Addr, payload []byte) []byte {
	segment := binary.BigEndian.AppendUint16(nil, 4321)
	segment = binary.BigEndian.AppendUint16(segment, 9) // discard (RFC 863)
	segment = binary.BigEndian.AppendUint16(segment, uint16(8+len(payload)))
	segment = append(append(segment, 0, 0), payload...)
	sum := checksum(pseudo(from, to, unix.IPPROTO_UDP, len(segment)), segment)
	binary.BigEndian.PutUint16(segment[6:], sum)
	return ip(from, to, unix.IPPROTO_UDP, 64, segment)
}

func ip(from, to netip.Addr, protocol, hops byte, payload []byte) []byte {
	if from.Is6() {
		packet := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), protocol, hops}
		return append(append(append(packet, from.AsSlice()...), to.AsSlice()...), payload...)
	}
	total := 20 + len(payload)
	packet := []byte{0x45, 0, byte(total >> 8), byte(total), 0, 0, 0, 0, hops, protocol, 0, 0}
	packet = append(append(packet, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(packet[10:], checksum(packet))
	return append(packet, payload...)
}

// icmp6 returns a packet with an ICMPv6 message, which ends with the payload.
func icmp6(from, to netip.Addr, kind byte, body []byte) []byte {
	message := append([]byte{kind, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(message[2:], checksum(pseudo(from, to, unix.IPPROTO_ICMPV6, len(message)), message))
	return ip(from, to, unix.IPPROTO_ICMPV6, 255, message)
}

func pseudo(from, to netip.Addr, protocol byte, length int) []byte {
	header := append(from.AsSlice(), to.AsSlice()...)
	if from.Is4() {
		return append(header, 0, protocol, byte(length>>8), byte(length))
	}
	return append(header, 0, 0, byte(length>>8), byte(length), 0, 0, 0, protocol)
}

// checksum returns the checksum of RFC 1071; every part but the last must have an even
// length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i, b := range part {
			if i%2 == 0 {
				sum += uint32(b) << 8
			} else {
				sum += uint32(b)
			}
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// forger is a pod of the tenant on the first node, the victim's node.
type forger struct {
	ns           *netlab.Namespace
	mac          net.HardwareAddr
	addresses    []netip.Addr
	gateway      net.HardwareAddr
	db, cache    *victimPod
	dbMAC        net.HardwareAddr
	cacheMAC     net.HardwareAddr
	mark         []byte
	node1, node2 *node
	outside      netip.Addr
}

// forges returns an attack that sends frames from the forger's own interface. It succeeds
// if a frame arrives at the victim's pod cache.
func forges(frame func(f *forger) []byte) func(ctx context.Context, w *testbed) (effect, error) {
	return func(ctx context.Context, w *testbed) (effect, error) {
		return w.withForger(ctx, func(f *forger) (bool, error) {
			return arrives(f.cache.ns, "eth0", f.mark, func() error { return raw(f.ns, frame(f)) })
		})
	}
}

func (w *testbed) withForger(ctx context.Context, do func(f *forger) (bool, error)) (effect, error) {
	pod, ns, err := w.attackersPod(ctx, 0)
	if err != nil {
		return effect{}, err
	}
	f := &forger{ns: ns, db: w.victims.db, cache: w.victims.cache, mark: marker(), node1: w.nodes[0], node2: w.nodes[1], outside: w.Net.Switch.V4.Addr(), gateway: routed.GatewayMAC}
	for _, m := range []struct {
		into *net.HardwareAddr
		ns   *netlab.Namespace
		link string
	}{
		{&f.mac, ns, "eth0"}, {&f.dbMAC, f.db.ns, "eth0"}, {&f.cacheMAC, f.cache.ns, "eth0"},
	} {
		if *m.into, err = linkOf(m.ns, m.link); err != nil {
			return effect{}, err
		}
	}
	record, err := w.recordOf(ctx, pod)
	if err != nil || record == nil {
		return effect{}, fmt.Errorf("the record of the attacker's pod: %v, %w", record, err)
	}
	for _, text := range record.Spec.Interfaces[0].Addresses {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return effect{}, err
		}
		f.addresses = append(f.addresses, p.Addr())
	}
	if w.forging.before != nil {
		if err := w.forging.before(ctx); err != nil {
			return effect{}, err
		}
	}
	arrived, err := do(f)
	if w.forging.after != nil {
		err = errors.Join(err, w.forging.after(ctx))
	}
	if err != nil {
		return effect{}, err
	}
	out := effect{arrived, "dropped"}
	if arrived {
		out.got = "arrived at the victim's pod"
	}
	return out, errors.Join(ns.Close(), w.remove(ctx, pod))
}

// packetAttacks send under another's identity.
func packetAttacks() []attack {
	attacks := map[string]struct {
		tries string
		frame func(f *forger) []byte
	}{
		"spoof-ipv4": {"a pod sends with the victim db's IPv4 address to cache", func(f *forger) []byte {
			return ethernet(f.gateway, f.mac, unix.ETH_P_IP, udp(f.db.addresses[0], f.cache.addresses[0], f.mark))
		}},
		"spoof-ipv6": {"a pod sends with the victim db's IPv6 address to cache", func(f *forger) []byte {
			return ethernet(f.gateway, f.mac, unix.ETH_P_IPV6, udp(f.db.addresses[1], f.cache.addresses[1], f.mark))
		}},
		"spoof-mac": {"a pod sends with the MAC and the address of the victim db", func(f *forger) []byte {
			return ethernet(f.gateway, f.dbMAC, unix.ETH_P_IP, udp(f.db.addresses[0], f.cache.addresses[0], f.mark))
		}},
		"spoof-outside": {"a pod sends as a machine outside", func(f *forger) []byte {
			return ethernet(f.gateway, f.mac, unix.ETH_P_IP, udp(f.outside, f.cache.addresses[0], f.mark))
		}},
		"arp-gateway": {"a pod answers ARP for the gateway", func(f *forger) []byte {
			return ethernet(broadcast, f.mac, unix.ETH_P_ARP, arp(2, f.mac, netip.MustParseAddr("169.254.1.1"), f.cacheMAC, f.cache.addresses[0], f.mark))
		}},
		"arp-victim": {"a pod answers ARP for the victim db", func(f *forger) []byte {
			return ethernet(f.cacheMAC, f.mac, unix.ETH_P_ARP, arp(2, f.mac, f.db.addresses[0], f.cacheMAC, f.cache.addresses[0], f.mark))
		}},
		"na-gateway": {"a pod advertises itself as the gateway fe80::1", func(f *forger) []byte {
			gateway := netip.MustParseAddr("fe80::1")
			body := append([]byte{0x20, 0, 0, 0}, gateway.AsSlice()...)
			body = append(append(body, 2, 1), f.mac...)
			return ethernet(allNodes, f.mac, unix.ETH_P_IPV6, icmp6(gateway, netip.MustParseAddr("ff02::1"), 136, option(body, f.mark)))
		}},
		"redirect": {"a pod redirects the victim's traffic to itself", func(f *forger) []byte {
			body := append([]byte{0, 0, 0, 0}, f.addresses[1].AsSlice()...)
			body = append(body, f.db.addresses[1].AsSlice()...)
			return ethernet(f.cacheMAC, f.mac, unix.ETH_P_IPV6, icmp6(netip.MustParseAddr("fe80::1"), f.cache.addresses[1], 137, option(body, f.mark)))
		}},
		"router": {"a pod advertises itself as a router", func(f *forger) []byte {
			own := linkLocal(f.mac)
			body := []byte{64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
			return ethernet(allNodes, f.mac, unix.ETH_P_IPV6, icmp6(own, netip.MustParseAddr("ff02::1"), 134, option(body, f.mark)))
		}},
		"vlan": {"a pod sends with a VLAN tag", func(f *forger) []byte {
			tagged := append([]byte{0, 5, 8, 0}, udp(f.db.addresses[0], f.cache.addresses[0], f.mark)...)
			return ethernet(f.cacheMAC, f.mac, unix.ETH_P_8021Q, tagged)
		}},
	}
	var out []attack
	for _, id := range []string{"spoof-ipv4", "spoof-ipv6", "spoof-mac", "spoof-outside", "arp-gateway", "arp-victim", "na-gateway", "redirect", "router", "vlan"} {
		out = append(out, attack{id: id, by: byTenant, tries: attacks[id].tries, do: forges(attacks[id].frame)})
	}
	return out
}

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// noMAC is the MAC that an ARP request asks for.
var noMAC = make(net.HardwareAddr, 6)

// arp returns an ARP message with the marker at its end: a request for an address (1), or the answer of its
// owner (2).
func arp(op byte, mac net.HardwareAddr, is netip.Addr, toMAC net.HardwareAddr, to netip.Addr, mark []byte) []byte {
	body := []byte{0, 1, 8, 0, 6, 4, 0, op}
	body = append(append(body, mac...), is.AsSlice()...)
	body = append(append(body, toMAC...), to.AsSlice()...)
	return append(body, mark...)
}

// option puts the marker into an unknown option of neighbour discovery.
func option(body, mark []byte) []byte {
	units := (len(mark) + 2 + 7) / 8
	text := append([]byte{253, byte(units)}, mark...)
	return append(body, append(text, make([]byte, units*8-len(text))...)...)
}

// linkLocal returns the link-local address of a MAC.
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}
