package nft_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/netlab"
)

// The part of SCTP (RFC 9260) that an association with one message in each direction
// needs: a kernel that forwards SCTP need not implement it.

// The types of chunks.
const (
	sctpData       = 0
	sctpInit       = 1
	sctpInitAck    = 2
	sctpCookieEcho = 10
	sctpCookieAck  = 11
)

// The tags that the two sides choose.
const (
	clientTag = 0x11111111
	serverTag = 0x22222222
)

// sctpSegment is a packet with its first chunk's type and its message, if any.
type sctpSegment struct {
	from         netip.Addr
	source, dest uint16
	first        byte
	message      []byte
}

func chunk(kind byte, body []byte) []byte {
	flags := byte(0)
	if kind == sctpData {
		flags = 3 // a message in one piece
		body = append(binary.BigEndian.AppendUint32(nil, 1), append(make([]byte, 8), body...)...)
	}
	out := append([]byte{kind, flags, 0, 0}, body...)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	return append(out, make([]byte, -len(out)&3)...)
}

// initiation is the body of INIT and INIT ACK.
func initiation(tag uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, 65536) // receive window in bytes
	return append(b, 0, 1, 0, 1, 0, 0, 0, 1)    // streams out and in, the first number
}

func segment(source, dest uint16, tag uint32, chunks ...[]byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, dest)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(append(b, 0, 0, 0, 0), bytes.Join(chunks, nil)...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// sctpSocket opens a socket for whole segments over IPv4. A kernel that implements SCTP
// would abort associations that it does not know.
func sctpSocket(t *testing.T, ns *netlab.Namespace) int {
	t.Helper()
	run(t, ns, "table ip quiet { chain out { type filter hook output priority 0; meta l4proto sctp @th,96,8 6 drop; }; }", "nft", "-f", "-")
	var fd int
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// readSegment reads one segment; false if none arrives for a while.
func readSegment(fd int) (s sctpSegment, ok bool) {
	buf := make([]byte, 2048)
	n, err := unix.Read(fd, buf)
	if err != nil || n < 20 {
		return s, false
	}
	b := buf[int(buf[0]&15)*4 : n]
	if len(b) < 16 {
		return s, false
	}
	s.from = netip.AddrFrom4([4]byte(buf[12:16]))
	s.source, s.dest, s.first = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[12]
	for rest := b[12:]; len(rest) >= 4; {
		length := int(binary.BigEndian.Uint16(rest[2:]))
		if length < 4 || length > len(rest) {
			return s, false
		}
		if rest[0] == sctpData && length > 16 {
			s.message = rest[16:length]
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return s, true
}

// serveSCTP answers at a port with the client's address, until stopped is closed.
func serveSCTP(fd int, port uint16, stopped <-chan struct{}) error {
	for {
		select {
		case <-stopped:
			return nil
		default:
		}
		s, ok := readSegment(fd)
		if !ok || s.dest != port {
			continue
		}
		var answer [][]byte
		switch s.first {
		case sctpInit:
			answer = [][]byte{chunk(sctpInitAck, append(initiation(serverTag), 0, 7, 0, 8, 'c', 'a', 'k', 'e'))}
		case sctpCookieEcho:
			answer = [][]byte{chunk(sctpCookieAck, nil), chunk(sctpData, []byte(s.from.String()))}
		default:
			continue
		}
		err := unix.Sendto(fd, segment(port, s.source, clientTag, answer...), 0, &unix.SockaddrInet4{Addr: s.from.As4()})
		if err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
}

// TestHostPortOverSCTP: an association with a host port is established, and carries data
// both ways.
func TestHostPortOverSCTP(t *testing.T) {
	l := newLab(t)
	a := l.pod(5, nft.Port{Protocol: "sctp", HostPort: 8080, ContainerPort: 80})
	server, client := sctpSocket(t, a.Namespace), sctpSocket(t, l.world.Namespace)
	stopped, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- serveSCTP(server, 80, stopped) }()
	defer func() {
		close(stopped)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	node := l.node.V4.Addr()
	const source = 40000
	send := func(tag uint32, chunks ...[]byte) {
		if err := unix.Sendto(client, segment(source, 8080, tag, chunks...), 0, &unix.SockaddrInet4{Addr: node.As4()}); err != nil {
			t.Fatal(err)
		}
	}
	step := func() { send(0, chunk(sctpInit, initiation(clientTag))) }
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		step()
		s, ok := readSegment(client)
		if !ok {
			continue // lost, so it is sent again
		}
		if s.from != node || s.source != 8080 || s.dest != source {
			t.Fatalf("answered from %v port %d, to port %d", s.from, s.source, s.dest)
		}
		switch s.first {
		case sctpInitAck:
			step = func() { send(serverTag, chunk(sctpCookieEcho, []byte("cake")), chunk(sctpData, []byte("who am I?"))) }
		case sctpCookieAck:
			if want := l.world.V4.Addr().String(); string(s.message) != want {
				t.Errorf("seen as %q, want %q", s.message, want)
			}
			return
		}
	}
	t.Fatal("no association with the host port")
}
