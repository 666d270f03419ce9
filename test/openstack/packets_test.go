package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	smokePort = 8080
	// answerTimeout is how long an answer may take that comes at all.
	answerTimeout = time.Second
)

// greeting is what a pod's server sends on each connection: more than one segment.
var greeting = bytes.Repeat([]byte("fairlead"), 8<<10)

// serve has a pod accept TCP connections on smokePort until the test ends.
func serve(t *testing.T, in *netlab.Namespace, address netip.Addr) {
	t.Helper()
	listener, err := in.Listen(t.Context(), net.JoinHostPort(address.String(), strconv.Itoa(smokePort)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(greeting)
			_ = conn.Close()
		}
	}()
}

// connect reports whether a pod gets the whole greeting of another.
func connect(ctx context.Context, from *netlab.Namespace, to netip.Addr) bool {
	var conn net.Conn
	err := from.Do(func() error {
		var err error
		dialer := net.Dialer{Timeout: answerTimeout}
		conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(to, smokePort).String())
		return err
	})
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * answerTimeout))
	var got bytes.Buffer
	_, err = got.ReadFrom(conn)
	return err == nil && bytes.Equal(got.Bytes(), greeting)
}

// ping reports whether an IPv4 address answers a pod's echo request. Each has an identifier
// of its own (docs/dev/openstack-lab.md, Limits).
func ping(ctx context.Context, from *netlab.Namespace, to netip.Addr) bool {
	const echoReply, echoRequest = 0, 8
	id := uint16(rand.Uint32()) //nolint:gosec // to differ, not a secret
	var conn net.PacketConn
	err := from.Do(func() error {
		var err error
		conn, err = (&net.ListenConfig{}).ListenPacket(ctx, "ip4:icmp", "0.0.0.0")
		return err
	})
	if err != nil {
		return false
	}
	defer conn.Close()
	request := []byte{echoRequest, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
	binary.BigEndian.PutUint16(request[2:], checksum(request))
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
	buffer := make([]byte, 1500)
	for {
		n, sender, err := conn.ReadFrom(buffer)
		if err != nil {
			return false
		}
		if n >= len(request) && buffer[0] == echoReply && binary.BigEndian.Uint16(buffer[4:]) == id && sender.String() == to.String() {
			return true
		}
	}
}

// checksum is that of RFC 1071, for an even number of bytes.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
