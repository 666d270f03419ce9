package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// discardPort is where the node listens for forged datagrams.
const discardPort = 9

// sources returns forged sources of a family: of pods here and elsewhere, of no pod, of the node, of
// the gateway, of machines outside, and those that no machine has.
func (f *forger) sources(w *testbed, family int) map[string]netip.Addr {
	node, db, web := f.node1.Addresses()[family].Addr(), f.db.addresses[family], w.victims.web.addresses[family]
	if family == 0 {
		return map[string]netip.Addr{
			"a pod here": db, "a pod elsewhere": web, "nobody": last(db), "the node": node, "the gateway": addr("169.254.1.1"), "outside": f.outside,
			"loopback": addr("127.0.0.1"), "0.0.0.0": addr("0.0.0.0"), "multicast": addr("224.0.0.5"), "broadcast": addr("255.255.255.255"),
		}
	}
	return map[string]netip.Addr{
		"a pod here": db, "a pod elsewhere": web, "nobody": last(db), "the node": node, "the gateway": addr("fe80::1"), "outside": addr("2001:db8::1"),
		"loopback": addr("::1"), "::": addr("::"), "multicast": addr("ff02::5"), "a pod's link-local": linkLocal(f.dbMAC),
		"another link-local": addr("fe80::1234"), "IPv4 in IPv6": addr("::ffff:10.244.0.6"),
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// last returns the last address of the /26 or /122 around one, which no pod of the test has.
func last(a netip.Addr) netip.Addr {
	raw := a.AsSlice()
	raw[len(raw)-1] |= 63
	out, _ := netip.AddrFromSlice(raw)
	return out
}

// try is a packet under a name, with a marker of its own.
type try struct {
	name  string
	mark  []byte
	frame []byte
}

// tryAll sends all tries again and again, and returns the names of those whose marker seen finds. The
// last one is a witness: it must be found, and proves that the others would have been.
func (f *forger) tryAll(tries []try, seen func() ([]byte, error)) ([]string, error) {
	arrived, witness := map[string]bool{}, tries[len(tries)-1].name
	for deadline := time.Now().Add(sniffTime); time.Now().Before(deadline) || !arrived[witness]; {
		if time.Since(deadline) > stepTimeout {
			return nil, errors.New("the pod's own packets do not arrive: nothing would be proved")
		}
		for _, t := range tries {
			if err := raw(f.ns, t.frame); err != nil {
				return nil, fmt.Errorf("send %s: %w", t.name, err)
			}
		}
		for {
			got, err := seen()
			if err != nil {
				return nil, err
			}
			if got == nil {
				break
			}
			for _, t := range tries {
				if bytes.Contains(got, t.mark) {
					arrived[t.name] = true
				}
			}
		}
	}
	delete(arrived, witness)
	var names []string
	for name := range arrived {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// onWire returns a function that returns the frames which come in by a link, nil if none waits.
func onWire(ns *netlab.Namespace, link string) (seen func() ([]byte, error), done func(), err error) {
	fd := -1
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, allFrames); err != nil {
			return err
		}
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allFrames, Ifindex: i.Index})
	})
	return received(fd, func(from unix.Sockaddr) bool {
		l, ok := from.(*unix.SockaddrLinklayer)
		return !ok || l.Pkttype != unix.PACKET_OUTGOING
	}), func() { _ = closeFD(fd) }, err
}

// atSocket is onWire for the datagrams that a program gets at all addresses.
func atSocket(ns *netlab.Namespace) (seen func() ([]byte, error), done func(), err error) {
	fd := -1
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Port: discardPort})
	})
	return received(fd, func(unix.Sockaddr) bool { return true }), func() { _ = closeFD(fd) }, err
}

func received(fd int, counts func(from unix.Sockaddr) bool) func() ([]byte, error) {
	timeout := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	buffer := make([]byte, 9000)
	return func() ([]byte, error) {
		for {
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				return nil, nil
			}
			if err != nil || counts(from) {
				return buffer[:n], err
			}
		}
	}
}

// kindOf returns the type of a frame with a packet of a family.
func kindOf(family int) uint16 { return []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[family] }

// datagrams returns one datagram from each source to an address; the last is from the pod's own.
func (f *forger) datagrams(w *testbed, family int, to netip.Addr, wrap func(packet []byte) []byte) (tries []try) {
	add := func(name string, from netip.Addr) {
		mark := marker()
		tries = append(tries, try{name, mark, wrap(udp(from, to, mark))})
	}
	for name, from := range f.sources(w, family) {
		add("from "+name, from)
	}
	add("from itself", f.addresses[family])
	return tries
}

// plain sends a packet to the gateway.
func (f *forger) plain(family int) func(packet []byte) []byte {
	return func(packet []byte) []byte { return ethernet(f.gateway, f.mac, kindOf(family), packet) }
}

// priority tags a packet with a priority and VLAN 0, which a machine takes as untagged.
func (f *forger) priority(family int) func(packet []byte) []byte {
	return func(packet []byte) []byte {
		tag := binary.BigEndian.AppendUint16([]byte{0x20, 0}, kindOf(family))
		return ethernet(f.gateway, f.mac, unix.ETH_P_8021Q, append(tag, packet...))
	}
}

// neighbourAttacks send what the node, the pod's only neighbour, must not pass on or believe.
func neighbourAttacks() []attack {
	var out []attack
	add := func(id, tries string, do func(ctx context.Context, w *testbed, f *forger) ([]string, error)) {
		out = append(out, attack{id: id, by: byTenant, tries: tries, do: func(ctx context.Context, w *testbed) (effect, error) {
			var names []string
			e, err := w.withForger(ctx, func(f *forger) (arrived bool, err error) {
				names, err = do(ctx, w, f)
				return len(names) > 0, err
			})
			if e.succeeded {
				e.got = strings.Join(names, ", ")
			}
			return e, err
		}})
	}
	for family, name := range []string{"ipv4", "ipv6"} {
		add("sources-to-pod-"+name, "a pod sends to cache under addresses of others and of nobody, "+name, func(_ context.Context, w *testbed, f *forger) ([]string, error) {
			seen, done, err := onWire(f.cache.ns, "eth0")
			defer done()
			if err != nil {
				return nil, err
			}
			return f.tryAll(f.datagrams(w, family, f.cache.addresses[family], f.plain(family)), seen)
		})
		add("sources-to-node-"+name, "the same to a program of its node", func(_ context.Context, w *testbed, f *forger) ([]string, error) {
			seen, done, err := atSocket(f.node1.Namespace)
			defer done()
			if err != nil {
				return nil, err
			}
			return f.tryAll(f.datagrams(w, family, f.node1.Addresses()[family].Addr(), f.plain(family)), seen)
		})
		add("sources-tagged-"+name, "the same to cache, with a priority tag", func(_ context.Context, w *testbed, f *forger) ([]string, error) {
			seen, done, err := onWire(f.cache.ns, "eth0")
			defer done()
			if err != nil {
				return nil, err
			}
			return f.tryAll(f.datagrams(w, family, f.cache.addresses[family], f.priority(family)), seen)
		})
	}
	add("beside-the-route", "a pod sends to cache past all that is routed: link-local, to all, raw frames", func(_ context.Context, _ *testbed, f *forger) ([]string, error) {
		seen, done, err := onWire(f.cache.ns, "eth0")
		defer done()
		if err != nil {
			return nil, err
		}
		return f.tryAll(f.besideTheRoute(), seen)
	})
	add("loopback-of-node", "a pod sends to a program of its node that listens at 127.0.0.1", func(_ context.Context, _ *testbed, f *forger) ([]string, error) {
		seen, done, err := atSocket(f.node1.Namespace)
		defer done()
		if err != nil {
			return nil, err
		}
		four, six, own := marker(), marker(), marker()
		return f.tryAll([]try{
			{"127.0.0.1", four, f.plain(0)(udp(f.addresses[0], addr("127.0.0.1"), four))},
			{"::1", six, f.plain(1)(udp(f.addresses[1], addr("::1"), six))},
			{"the node", own, f.plain(0)(udp(f.addresses[0], f.node1.Addresses()[0].Addr(), own))},
		}, seen)
	})
	add("claims", "a pod claims addresses of others, of the node and of the gateway by ARP and neighbour discovery, and to be a router", func(_ context.Context, w *testbed, f *forger) ([]string, error) {
		return w.changedBy(f, f.claims(w))
	})
	add("arp-flood", "a pod asks for the gateway from 1,500 addresses", func(_ context.Context, w *testbed, f *forger) ([]string, error) {
		var frames [][]byte
		for i := range 1500 {
			frames = append(frames, ethernet(f.gateway, f.mac, unix.ETH_P_ARP, arp(1, f.mac, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), noMAC, addr("169.254.1.1"), nil)))
		}
		return w.changedBy(f, frames)
	})
	return out
}

// besideTheRoute returns frames that a bridge would deliver to another pod of the node.
func (f *forger) besideTheRoute() (tries []try) {
	add := func(name string, frame func(mark []byte) []byte) {
		mark := marker()
		tries = append(tries, try{name, mark, frame(mark)})
	}
	own, theirs := linkLocal(f.mac), linkLocal(f.cacheMAC)
	for name, mac := range map[string]net.HardwareAddr{"the gateway": f.gateway, "cache": f.cacheMAC} {
		for source, from := range map[string]netip.Addr{"its link-local address": own, "its address": f.addresses[1]} {
			add("from "+source+" to cache's link-local address, by "+name, func(mark []byte) []byte {
				return ethernet(mac, f.mac, unix.ETH_P_IPV6, udp(from, theirs, mark))
			})
		}
		add("from its link-local address, by "+name, func(mark []byte) []byte {
			return ethernet(mac, f.mac, unix.ETH_P_IPV6, udp(own, f.cache.addresses[1], mark))
		})
		add("a frame of another protocol to "+name, func(mark []byte) []byte { return ethernet(mac, f.mac, 0x88b5, mark) })
	}
	add("to cache's MAC", func(mark []byte) []byte {
		return ethernet(f.cacheMAC, f.mac, unix.ETH_P_IP, udp(f.db.addresses[0], f.cache.addresses[0], mark))
	})
	add("to ff02::1", func(mark []byte) []byte {
		return ethernet(allNodes, f.mac, unix.ETH_P_IPV6, udp(own, addr("ff02::1"), mark))
	})
	add("to ff05::1", func(mark []byte) []byte {
		return ethernet(allNodes, f.mac, unix.ETH_P_IPV6, udp(f.addresses[1], addr("ff05::1"), mark))
	})
	add("to 255.255.255.255", func(mark []byte) []byte {
		return ethernet(broadcast, f.mac, unix.ETH_P_IP, udp(f.addresses[0], addr("255.255.255.255"), mark))
	})
	add("to 224.0.0.1", func(mark []byte) []byte {
		return ethernet(net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, f.mac, unix.ETH_P_IP, udp(f.addresses[0], addr("224.0.0.1"), mark))
	})
	add("a frame to all", func(mark []byte) []byte { return ethernet(broadcast, f.mac, 0x88b5, mark) })
	add("the way that is allowed", func(mark []byte) []byte { return f.plain(0)(udp(f.addresses[0], f.cache.addresses[0], mark)) })
	return tries
}

// claims returns frames that would change what a careless node knows of its neighbours and routers.
func (f *forger) claims(w *testbed) (frames [][]byte) {
	db, web := f.db.addresses, w.victims.web.addresses
	for _, claimed := range []netip.Addr{db[0], web[0], addr("169.254.1.1"), f.node1.Addresses()[0].Addr(), f.node2.Addresses()[0].Addr(), last(db[0]), f.outside} {
		for _, op := range []byte{1, 2} {
			for _, mac := range []net.HardwareAddr{broadcast, f.gateway} {
				frames = append(frames, ethernet(mac, f.mac, unix.ETH_P_ARP, arp(op, f.mac, claimed, noMAC, claimed, nil)), ethernet(mac, f.mac, unix.ETH_P_ARP, arp(op, f.mac, claimed, noMAC, db[0], nil)))
			}
		}
	}
	lladdr := append([]byte{2, 1}, f.mac...)
	own := linkLocal(f.mac)
	for _, claimed := range []netip.Addr{db[1], addr("fe80::1"), f.node1.Addresses()[1].Addr(), last(db[1]), linkLocal(f.dbMAC)} {
		for _, from := range []netip.Addr{f.addresses[1], own, claimed} {
			for to, mac := range map[netip.Addr]net.HardwareAddr{addr("ff02::1"): allNodes, addr("fe80::1"): f.gateway} {
				body := append(append([]byte{0x60, 0, 0, 0}, claimed.AsSlice()...), lladdr...)
				frames = append(frames, ethernet(mac, f.mac, unix.ETH_P_IPV6, icmp6(from, to, 136, body)))
			}
		}
	}
	for _, from := range []netip.Addr{own, f.addresses[1], addr("fe80::1"), addr("fe80::77")} {
		prefix := append([]byte{3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 1, 0x51, 0x80, 0, 0, 0, 0}, addr("fd99::").AsSlice()...)
		router := append([]byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, prefix...)
		redirect := append(append([]byte{0, 0, 0, 0}, own.AsSlice()...), db[1].AsSlice()...)
		frames = append(frames,
			ethernet(allNodes, f.mac, unix.ETH_P_IPV6, icmp6(from, addr("ff02::1"), 134, router)),
			ethernet(f.gateway, f.mac, unix.ETH_P_IPV6, icmp6(from, f.node1.Addresses()[1].Addr(), 137, redirect)))
	}
	return frames
}

// changedBy sends frames and returns what the node of the pod knows anew: neighbours, routes and
// addresses. A few neighbours of the node may come from the requests of one pod.
func (w *testbed) changedBy(f *forger, frames [][]byte) ([]string, error) {
	const few = 16
	before, err := known(f.node1.Namespace)
	if err != nil {
		return nil, err
	}
	for _, frame := range frames {
		if err := raw(f.ns, frame); err != nil {
			return nil, err
		}
	}
	own := marker()
	seen, done, err := atSocket(f.node1.Namespace)
	defer done()
	if err != nil {
		return nil, err
	}
	// The node has handled all frames before this one.
	if _, err := f.tryAll([]try{{"the node", own, f.plain(0)(udp(f.addresses[0], f.node1.Addresses()[0].Addr(), own))}}, seen); err != nil {
		return nil, err
	}
	now, err := known(f.node1.Namespace)
	if err != nil {
		return nil, err
	}
	news := slices.DeleteFunc(now, func(s string) bool {
		ofOthers := strings.HasPrefix(s, "neighbour ") && !strings.Contains(s, f.mac.String())
		return ofOthers || slices.Contains(before, s)
	})
	asked := 0
	news = slices.DeleteFunc(news, func(s string) bool {
		own := strings.HasPrefix(s, "neighbour ") && !f.isClaim(w, s)
		if own {
			asked++
		}
		return own
	})
	if asked > few {
		news = append(news, fmt.Sprintf("%d neighbours of one pod", asked))
	}
	return news, nil
}

// isClaim reports whether a neighbour of the node is a victim's address at the pod's MAC.
func (f *forger) isClaim(w *testbed, neighbour string) bool {
	all := slices.Concat(f.db.addresses, w.victims.web.addresses, f.cache.addresses, []netip.Addr{addr("fe80::1"), addr("169.254.1.1"), f.outside})
	for _, n := range []*node{f.node1, f.node2} {
		for _, p := range n.Addresses() {
			all = append(all, p.Addr())
		}
	}
	return slices.ContainsFunc(all, func(a netip.Addr) bool { return strings.HasPrefix(neighbour, "neighbour "+a.String()+" ") })
}

// known lists the neighbours with a MAC, the routes and the addresses in a namespace.
func known(ns *netlab.Namespace) (all []string, err error) {
	h, err := ns.Netlink()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	neighbours, err := h.NeighList(0, netlink.FAMILY_ALL)
	for _, n := range neighbours {
		if n.Family != unix.AF_BRIDGE && len(n.HardwareAddr) > 0 && n.State&unix.NUD_NOARP == 0 {
			all = append(all, fmt.Sprintf("neighbour %s at %s on link %d", n.IP, n.HardwareAddr, n.LinkIndex))
		}
	}
	routes, routesErr := h.RouteList(nil, netlink.FAMILY_ALL)
	for _, r := range routes {
		all = append(all, "route "+r.String())
	}
	addresses, addressesErr := h.AddrList(nil, netlink.FAMILY_ALL)
	for _, a := range addresses {
		all = append(all, "address "+a.IPNet.String())
	}
	return all, errors.Join(err, routesErr, addressesErr)
}
