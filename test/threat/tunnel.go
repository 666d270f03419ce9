package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	tunnelPort = 4789
	vni        = 158
)

// forged returns a packet in VXLAN, as another node would send it to this node: a UDP
// datagram from one address to another.
func forged(n *node, from, to netip.Addr, mark []byte) []byte {
	header := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	kind := uint16(0x0800)
	if to.Is6() {
		kind = 0x86dd
	}
	return append(header, ethernet(host.TunnelMAC(n.Name), host.TunnelMAC("node-9"), kind, udp(from, to, mark))...)
}

// tunnelAttacks send to the port of the nodes' tunnel.
func tunnelAttacks() []attack {
	var out []attack
	for _, family := range []struct {
		name string
		at   int
	}{{"ipv4", 0}, {"ipv6", 1}} {
		at := family.at
		out = append(out,
			attack{
				id: "tunnel-own-node-" + family.name, by: byTenant, tries: "a pod sends a packet in VXLAN to its own node, as db to cache",
				do: func(ctx context.Context, w *testbed) (effect, error) {
					return w.withForger(ctx, func(f *forger) (bool, error) { return w.tunnelTo(f.ns, f.node1, at, w.victims.cache) })
				},
			},
			attack{
				id: "tunnel-other-node-" + family.name, by: byTenant, tries: "a pod sends a packet in VXLAN to the other node, as db to web",
				do: func(ctx context.Context, w *testbed) (effect, error) {
					return w.withForger(ctx, func(f *forger) (bool, error) { return w.tunnelTo(f.ns, f.node2, at, w.victims.web) })
				},
			},
			attack{
				id: "tunnel-outsider-" + family.name, by: "outsider", tries: "a machine on the nodes' link that is no node sends a packet in VXLAN, as db to cache",
				do: func(_ context.Context, w *testbed) (effect, error) {
					arrived, err := w.tunnelTo(w.outsider, w.nodes[0], at, w.victims.cache)
					return delivered(arrived), err
				},
			},
		)
	}
	for at, name := range []string{"ipv4", "ipv6"} {
		behind := func(tries string, do func(w *testbed, f *forger) (bool, error)) attack {
			return attack{by: byTenant, tries: tries + ", behind another datagram in one packet (UDP_SEGMENT)", do: func(ctx context.Context, w *testbed) (effect, error) {
				return w.withForger(ctx, func(f *forger) (bool, error) { return do(w, f) })
			}}
		}
		own := behind("a pod sends a packet in VXLAN to its own node, as db to cache", func(w *testbed, f *forger) (bool, error) {
			return w.behindTo(f.ns, f.node1, at, w.victims.cache)
		})
		other := behind("a pod sends a packet in VXLAN to the other node, as db to web", func(w *testbed, f *forger) (bool, error) {
			return w.behindTo(f.ns, f.node2, at, w.victims.web)
		})
		stranger := behind("a machine on the nodes' link sends a packet in VXLAN, as db to cache", nil)
		stranger.by, stranger.do = "outsider", func(_ context.Context, w *testbed) (effect, error) {
			arrived, err := w.behindTo(w.outsider, w.nodes[0], at, w.victims.cache)
			return delivered(arrived), err
		}
		own.id, other.id, stranger.id = "segments-own-node-"+name, "segments-other-node-"+name, "segments-outsider-"+name
		out = append(out, own, other, stranger)
	}
	return append(out, attack{
		id: "gateway-loop", by: byTenant, tries: "a pod sends to the gateway's address, whose route leads to the node itself, with a TTL of 255",
		do: func(ctx context.Context, w *testbed) (effect, error) {
			return w.withForger(ctx, func(f *forger) (bool, error) { return loops(f) })
		},
	})
}

// behindTo is tunnelTo with the datagram behind another one in a packet: the rules of the packet filter
// see the first.
func (w *testbed) behindTo(from *netlab.Namespace, n *node, family int, to *victimPod) (bool, error) {
	mark := marker()
	packet := forged(n, w.victims.db.addresses[family], to.addresses[family], mark)
	target := netip.AddrPortFrom(n.Addresses()[family].Addr(), tunnelPort)
	both := append(make([]byte, len(packet)), packet...)
	return arrives(to.ns, "eth0", mark, func() error {
		return tuned(from, target, both, unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(packet))
	})
}

// loops reports whether packets to the gateway go round in the pod's node.
func loops(f *forger) (bool, error) {
	before, err := f.node1.Received("lo")
	if err != nil {
		return false, err
	}
	const packets = 100
	to := netip.AddrPortFrom(addr("169.254.1.1"), 7)
	for range packets {
		if err := tuned(f.ns, to, []byte("x"), unix.IPPROTO_IP, unix.IP_TTL, 255); err != nil {
			return false, err
		}
	}
	after, err := f.node1.Received("lo")
	return after-before > 20*packets, err
}

// tuned sends a datagram by a socket with an option.
func tuned(from *netlab.Namespace, to netip.AddrPort, payload []byte, level, option, value int) error {
	return from.Do(func() error {
		conn, err := net.Dial("udp", to.String()) //nolint:noctx // it waits for nobody
		if err != nil {
			return err
		}
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err == nil {
			controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
			err = errors.Join(err, controlErr)
		}
		if err == nil {
			_, err = conn.Write(payload)
		}
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) {
			err = nil // it was refused
		}
		return errors.Join(err, conn.Close())
	})
}

// tunnelTo sends from a namespace to a node's end of the tunnel, over one family, and
// reports whether the inner packet arrives at the victim's pod.
func (w *testbed) tunnelTo(from *netlab.Namespace, n *node, family int, to *victimPod) (bool, error) {
	mark := marker()
	packet := forged(n, w.victims.db.addresses[0], to.addresses[0], mark)
	target := netip.AddrPortFrom(n.Addresses()[family].Addr(), tunnelPort)
	return arrives(to.ns, "eth0", mark, func() error { return datagram(from, target, packet) })
}

func delivered(arrived bool) effect {
	if arrived {
		return effect{true, "arrived at the victim's pod"}
	}
	return effect{false, "dropped"}
}

// nodesPort is a port of the machine, and its user.
type nodesPort struct {
	protocol corev1.Protocol
	port     int32
	of       string
}

// portAttacks ask for ports that are the node's own.
func portAttacks() []attack {
	var out []attack
	for _, p := range []nodesPort{
		{corev1.ProtocolUDP, tunnelPort, "the tunnel"},
		{corev1.ProtocolTCP, 53, "the node's resolver"},
		{corev1.ProtocolTCP, 30080, "a Service"},
		{corev1.ProtocolTCP, 10250, "the kubelet"},
		{corev1.ProtocolTCP, 6443, "the API server"},
		{corev1.ProtocolTCP, 22, "SSH"},
		{corev1.ProtocolTCP, 9470, "fairlead-controller"},
		{corev1.ProtocolTCP, 9471, "fairlead-node"},
	} {
		out = append(out, attack{
			id: fmt.Sprintf("hostport-%d", p.port), by: byTenant, tries: fmt.Sprintf("a pod asks for the host port %d/%s, which is that of %s", p.port, p.protocol, p.of),
			do: asUser(tenant, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
				return w.takePort(ctx, api, p)
			}),
		})
	}
	return out
}

// takePort creates a pod with a host port and sends to the port from outside.
func (w *testbed) takePort(ctx context.Context, api client.Client, p nodesPort) (out effect, err error) {
	n := w.nodes[0]
	pod := newPod(tenant, fmt.Sprintf("port-%d", p.port), n.Name, nil)
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: p.port, ContainerPort: 5555, Protocol: p.protocol}}
	if err := api.Create(ctx, pod); err != nil {
		return effect{}, err
	}
	path, note := "", ""
	_, err = within(ctx, patience, func(ctx context.Context) (bool, error) {
		if path, err = n.sandboxOf(pod.UID); err != nil || path != "" {
			return true, err
		}
		note, err = w.noteOn(ctx, pod)
		return note != "", err
	})
	if err != nil {
		return effect{}, err
	}
	if path == "" {
		return effect{false, "it does not run: " + oneLine(note)}, w.remove(ctx, pod)
	}
	ns, err := netlab.OpenNamespace(path)
	if err != nil {
		return effect{}, err
	}
	got, err := w.portLeadsTo(ns, netip.AddrPortFrom(n.V4.Addr(), uint16(p.port)), p.protocol) //nolint:contextcheck // it has deadlines of its own
	if err != nil {
		return effect{}, err
	}
	out = effect{got, "it runs, and gets nothing"}
	if got {
		out.got = "packets to the node's port arrive at the pod"
	}
	return out, errors.Join(ns.Close(), w.remove(ctx, pod))
}

// portLeadsTo reports whether packets from the outsider to a node's port arrive at port
// 5555 of a pod.
func (w *testbed) portLeadsTo(pod *netlab.Namespace, target netip.AddrPort, protocol corev1.Protocol) (bool, error) {
	came := make(chan struct{}, 1)
	report := func() {
		select {
		case came <- struct{}{}:
		default:
		}
	}
	if protocol == corev1.ProtocolUDP {
		var server net.PacketConn
		err := pod.Do(func() (err error) { server, err = net.ListenPacket("udp", ":5555"); return err })
		if err != nil {
			return false, err
		}
		defer server.Close()
		go func() {
			if _, _, err := server.ReadFrom(make([]byte, 100)); err == nil {
				report()
			}
		}()
	} else {
		listener, err := pod.Listen(context.Background(), ":5555")
		if err != nil {
			return false, err
		}
		defer listener.Close()
		go func() {
			if conn, err := listener.Accept(); err == nil {
				conn.Close()
				report()
			}
		}()
	}
	for range 8 {
		err := w.outsider.Do(func() error {
			network := map[corev1.Protocol]string{corev1.ProtocolUDP: "udp", corev1.ProtocolTCP: "tcp"}[protocol]
			conn, err := net.DialTimeout(network, target.String(), 200*time.Millisecond)
			if err != nil {
				return nil // no answer
			}
			defer conn.Close()
			_, _ = conn.Write([]byte("for the node")) // the server shows whether it arrives
			return nil
		})
		if err != nil {
			return false, err
		}
		select {
		case <-came:
			return true, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false, nil
}
