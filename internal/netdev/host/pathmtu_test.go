package host

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// A pod whose packets are too long learns the path MTU from the place that cannot pass
// them on: a tunnel with a smaller MTU than the pod, a router's next link, an uplink
// with a smaller MTU than the pod.
func TestPathMTU(t *testing.T) {
	nettest.NeedIPv6(t)
	is4, is6 := netip.Addr.Is4, netip.Addr.Is6
	narrow := func(t *testing.T, k *Kernel, link string, mtu int) {
		t.Helper()
		if err := nettest.OpenHandle(t, k.Namespace()).LinkSetMTU(nettest.LinkNamed(t, k.Namespace(), link), mtu); err != nil {
			t.Fatal(err)
		}
	}
	for _, underlay := range []struct {
		name string
		of   func(netip.Addr) bool
	}{{"IPv4", is4}, {"IPv6", is6}} {
		t.Run("tunnel over "+underlay.name, func(t *testing.T) {
			nodes, router := newRouted(t, 2, underlay.of)
			var pods []*link.Namespace
			var ips [][]netip.Addr
			for i, k := range nodes {
				state := routedState(i, underlay.of)
				apply(t, k, state)
				ns, addresses := podOn(t, k, i, routedMTU)
				pods, ips = append(pods, ns), append(ips, addresses)
			}
			for _, ip := range ips[1] {
				streams(t, pods[0], pods[1], ip)
			}
			narrow(t, router, "leg2", 1400)
			for _, ip := range ips[1] {
				streams(t, pods[0], pods[1], ip)
			}
		})
	}
	t.Run("no tunnel", func(t *testing.T) {
		nodes := newCable(t, 2) // links of 1450 bytes
		var pods []*link.Namespace
		var ips [][]netip.Addr
		for i, k := range nodes {
			apply(t, k, stateOf(i, 2))
			ns, addresses := podOn(t, k, i, 1450)
			pods, ips = append(pods, ns), append(ips, addresses)
		}
		for _, ip := range ips[1] {
			carries(t, pods[0], pods[1], ip, 1450)
		}
		for _, k := range nodes {
			narrow(t, k, "up0", 1400)
		}
		for _, ip := range ips[1] {
			streams(t, pods[0], pods[1], ip)
		}
	})
}

// carries sends datagrams of full size, which must not be fragmented, in both directions;
// a datagram with one byte more does not leave the pod.
func carries(tb testing.TB, from, to *link.Namespace, target netip.Addr, mtu int) {
	tb.Helper()
	whole := func(_, _ string, c syscall.RawConn) (err error) {
		level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
		if target.Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
		}
		controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_DO) })
		return errors.Join(controlErr, err)
	}
	headers := 20 + 8
	if target.Is6() {
		headers = 40 + 8
	}
	at := netip.AddrPortFrom(target, 4343).String()
	var server net.PacketConn
	nettest.In(tb, to, func() (err error) {
		server, err = (&net.ListenConfig{Control: whole}).ListenPacket(tb.Context(), "udp", at)
		return err
	})
	defer server.Close()
	go func() {
		buf := make([]byte, mtu)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], from)
		}
	}()
	var conn net.Conn
	nettest.In(tb, from, func() (err error) {
		conn, err = (&net.Dialer{Control: whole}).DialContext(tb.Context(), "udp", at)
		return err
	})
	defer conn.Close()
	if _, err := conn.Write(make([]byte, mtu-headers+1)); !errors.Is(err, unix.EMSGSIZE) {
		tb.Errorf("a packet of %d bytes to %v: %v, want EMSGSIZE", mtu+1, target, err)
	}
	sent, got := make([]byte, mtu-headers), make([]byte, mtu)
	_, _ = rand.Read(sent)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := conn.Write(sent); err != nil {
			tb.Errorf("a packet of %d bytes to %v: %v", mtu, target, err)
			return
		}
		if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			tb.Fatal(err)
		}
		n, err := conn.Read(got)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(deadline) {
			continue
		}
		if err != nil || !bytes.Equal(sent, got[:n]) {
			tb.Errorf("a packet of %d bytes to %v came back as %d bytes, %v", mtu, target, n, err)
		}
		return
	}
}

// streams sends many bytes over one connection, and waits until all came back.
func streams(tb testing.TB, from, to *link.Namespace, target netip.Addr) {
	tb.Helper()
	const size = 256 << 10
	at := netip.AddrPortFrom(target, 4444).String()
	var listener net.Listener
	nettest.In(tb, to, func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	})
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var conn net.Conn
	nettest.In(tb, from, func() (err error) {
		conn, err = net.DialTimeout("tcp", at, 10*time.Second)
		return err
	})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		tb.Fatal(err)
	}
	sent, got := make([]byte, size), make([]byte, size)
	_, _ = rand.Read(sent)
	go func() { _, _ = conn.Write(sent) }()
	if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
		tb.Errorf("of %d bytes to %v %d came back: %v", size, target, n, err)
	}
}
