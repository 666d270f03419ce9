package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

// TestFlowThatBeganTooEarly has a pod send to an address of a block that its node does not
// know yet. The packets leave the cluster with the node's address as their source. As soon as
// the node knows the block, the packets of the same flow have the pod's address.
func TestFlowThatBeganTooEarly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n1 := l.node(t, 0)
	n1.start(t)
	n1.awaitConflist(t)
	p1 := n1.pod(t, "p1")
	l.attachment(t, n1, p1, "10.244.1.5/32", "fd00:10:244:1::5/128")
	n1.cni("ADD", p1, p1.netns.Path()).wantOK(t, "ADD p1")

	targets := []netip.AddrPort{netip.MustParseAddrPort("10.244.2.5:7000"), netip.MustParseAddrPort("[fd00:10:244:2::5]:7000")}
	outside := l.net.Switch
	early := make([]net.Conn, len(targets))
	for i, to := range targets {
		// A host outside the cluster has the address, so it receives the packets that leave.
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "ip", "address", "add", netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String(), "dev", "lo", "nodad")
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := outside.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		server := listenUDP(t, outside.Namespace, to)
		early[i] = sendUDP(t, p1.netns, to)
		l.wantSender(t, server, n1.Addresses()[i].Addr().String())
	}

	n2 := l.node(t, 1)
	n2.start(t)
	n2.awaitConflist(t)
	p2 := n2.pod(t, "p2")
	l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
	n2.cni("ADD", p2, p2.netns.Path()).wantOK(t, "ADD p2")
	for i, to := range targets {
		own, _, err := net.SplitHostPort(early[i].LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		l.wantSender(t, listenUDP(t, p2.netns, to), own)
	}
}

// wantSender waits until the server receives a packet from an address.
func (l *lab) wantSender(t *testing.T, server net.PacketConn, address string) {
	t.Helper()
	l.cluster.Eventually(t, fmt.Sprintf("a packet from %s at %s", address, server.LocalAddr()), func(context.Context) error {
		if err := server.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		_, from, err := server.ReadFrom(make([]byte, 16))
		if err != nil {
			return err
		}
		host, _, err := net.SplitHostPort(from.String())
		if err == nil && host != address {
			err = fmt.Errorf("one came from %s", from)
		}
		return err
	})
}

// sendUDP returns a socket in a namespace. It sends a packet to one address every 50 ms until
// the test ends, since the kernel forgets a flow without packets after half a minute.
func sendUDP(t *testing.T, ns *netlab.Namespace, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, _ = conn.Write([]byte("x")) // there may be no listener yet
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		sending.Wait()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// listenUDP returns a socket at an address of a pod or a machine.
func listenUDP(t *testing.T, ns *netlab.Namespace, at netip.AddrPort) (conn net.PacketConn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
