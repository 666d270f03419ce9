package nettest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Fits fails the test if an error has words that the plugin must not print: runtimes take
// them for success, since they mean that the sandbox is gone.
func Fits(tb testing.TB, err error) {
	tb.Helper()
	for _, words := range []string{"not found", "no such file"} {
		if strings.Contains(strings.ToLower(err.Error()), words) {
			tb.Errorf("error %q has the words %q, which runtimes take for success", err, words)
		}
	}
}

// Reaches sends a datagram and opens a connection from one namespace to an address in
// another, and waits for the answers.
func Reaches(tb testing.TB, from, to *link.Namespace, target netip.Addr) {
	tb.Helper()
	if err := Talk(tb, from, to, target, 5*time.Second); err != nil {
		tb.Errorf("%v is not reached: %v", target, err)
	}
}

// Talk does the same as Reaches within a bounded time, and returns the error.
func Talk(tb testing.TB, from, to *link.Namespace, target netip.Addr, within time.Duration) error {
	tb.Helper()
	at := netip.AddrPortFrom(target, 4242).String()
	var packets net.PacketConn
	var listener net.Listener
	In(tb, to, func() (err error) {
		if packets, err = net.ListenPacket("udp", at); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", at)
		return err
	})
	defer func() { _ = errors.Join(packets.Close(), listener.Close()) }()
	go echoPackets(packets)
	go echoConnections(listener)

	for _, network := range []string{"udp", "tcp"} {
		var conn net.Conn
		err := from.Do(func() (err error) {
			conn, err = net.DialTimeout(network, at, within)
			return err
		})
		if err != nil {
			return err
		}
		err = exchange(conn, within)
		_ = conn.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", network, err)
		}
	}
	return nil
}

func echoPackets(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}

func echoConnections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go echoConnection(c)
	}
}

// echoConnection returns everything until the other end closes: it may send again before it
// has read the answer.
func echoConnection(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// exchange sends until an answer comes. The kernel drops the first packet if the link has
// no carrier yet.
func exchange(c net.Conn, within time.Duration) error {
	const resend = 20 * time.Millisecond
	buf := make([]byte, 4)
	for start := time.Now(); ; {
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(resend)); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		if err == nil && string(buf) != "ping" {
			return fmt.Errorf("got %q back", buf)
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) > within {
			return err
		}
	}
}
