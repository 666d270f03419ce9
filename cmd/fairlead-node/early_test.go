package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

// TestFlowThatBeganTooEarly: a pod sends to an address of a block that its node does not
// know yet, which leaves the cluster with the node's address. From the moment when the
// block is known the same flow is the pod's own.
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

	const port = 7000
	targets := []string{"10.244.2.5", "fd00:10:244:2::5"}
	var early []net.Conn
	for _, address := range targets {
		conn := dialUDP(t, p1.netns, netip.AddrPortFrom(netip.MustParseAddr(address), port))
		l.cluster.Eventually(t, "a first packet to "+address, func(context.Context) error {
			_, err := conn.Write([]byte("early"))
			return err
		})
		early = append(early, conn)
	}

	n2 := l.node(t, 1)
	n2.start(t)
	n2.awaitConflist(t)
	p2 := n2.pod(t, "p2")
	l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
	n2.cni("ADD", p2, p2.netns.Path()).wantOK(t, "ADD p2")
	for i, address := range targets {
		server, err := listenUDP(p2.netns, netip.AddrPortFrom(netip.MustParseAddr(address), port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		own := early[i].LocalAddr().String()
		l.cluster.Eventually(t, "packets of a flow that began early from "+own, func(context.Context) error {
			if _, err := early[i].Write([]byte("late")); err != nil {
				return err
			}
			if err := server.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return err
			}
			_, from, err := server.ReadFrom(make([]byte, 16))
			if err != nil {
				return err
			}
			if from.String() != own {
				return fmt.Errorf("one came from %s", from)
			}
			return nil
		})
	}
}

// dialUDP is a socket of a pod that sends to one address.
func dialUDP(t *testing.T, ns *netlab.Namespace, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return conn
}

func listenUDP(ns *netlab.Namespace, at netip.AddrPort) (conn net.PacketConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}
