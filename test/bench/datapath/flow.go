package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	// port is the port of every pod that receives.
	port = 4242
	// smallPacket is the payload of a datagram, in bytes.
	smallPacket = 64
	// tcpWrite and tcpRead are the lengths of one write and one read, in bytes.
	tcpWrite, tcpRead = 128 << 10, 256 << 10
	// patience is how long a read or a write may wait before it counts as lost.
	patience = 100 * time.Millisecond
	// atMost is how long a flow without any success is tried.
	atMost = 10 * time.Second
)

// Kind is a kind of traffic.
type Kind string

// The kinds of traffic: bytes of one TCP connection per second, datagrams of 64 bytes
// that arrive per second, and the time of one datagram of 64 bytes and its answer, in
// microseconds.
const (
	TCP       Kind = "tcp"
	Datagrams Kind = "udp"
	RoundTrip Kind = "rtt"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{TCP, Datagrams, RoundTrip} }

// end is a place that sends or receives, with its address.
type end struct {
	ns      *netlab.Namespace
	address netip.Addr
}

// flow has the open sockets of one path in one family.
type flow struct {
	tcpFrom, tcpTo *os.File
	udpFrom, udpTo *os.File
}

func (f *flow) close() {
	for _, s := range []*os.File{f.tcpFrom, f.tcpTo, f.udpFrom, f.udpTo} {
		if s != nil {
			_ = s.Close()
		}
	}
}

// open connects two ends.
func open(from, to end) (f *flow, err error) {
	f = &flow{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	at := netip.AddrPortFrom(to.address, port)
	var listener *net.TCPListener
	err = to.ns.Do(func() error {
		if listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)); err != nil {
			return err
		}
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		f.udpTo, err = blocking(conn)
		return err
	})
	if listener != nil {
		defer listener.Close()
	}
	if err != nil {
		return f, fmt.Errorf("listen at %v: %w", at, err)
	}
	err = from.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", at.String(), 10*time.Second)
		if err != nil {
			return err
		}
		if f.tcpFrom, err = blocking(conn.(*net.TCPConn)); err != nil {
			return err
		}
		udp, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.address, 0)), net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		f.udpFrom, err = blocking(udp)
		return err
	})
	if err != nil {
		return f, fmt.Errorf("connect %v to %v: %w", from.address, at, err)
	}
	if err := listener.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return f, err
	}
	accepted, err := listener.AcceptTCP()
	if err != nil {
		return f, fmt.Errorf("accept at %v: %w", at, err)
	}
	f.tcpTo, err = blocking(accepted)
	return f, err
}

// socket is a TCP or UDP socket.
type socket interface {
	File() (*os.File, error)
	Close() error
}

// blocking returns a socket with calls that block, but not longer than patience.
func blocking(c socket) (*os.File, error) {
	file, err := c.File()
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	fd := int(file.Fd())
	return file, errors.Join(
		unix.SetNonblock(fd, false),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
}

// measure sends for a while and returns the figure of a kind.
func (f *flow) measure(kind Kind, d time.Duration) (float64, error) {
	switch kind {
	case TCP:
		return stream(int(f.tcpFrom.Fd()), int(f.tcpTo.Fd()), d, tcpWrite, tcpRead)
	case Datagrams:
		bytes, err := stream(int(f.udpFrom.Fd()), int(f.udpTo.Fd()), d, smallPacket, smallPacket)
		return bytes / smallPacket, err
	case RoundTrip:
		return f.roundTrips(d)
	}
	return 0, fmt.Errorf("kind of traffic %q: must be of %v", kind, Kinds())
}

// stream writes to one socket and reads from another, and returns the bytes read per
// second. It discards first what an earlier call left in the socket.
func stream(from, to int, d time.Duration, write, read int) (perSecond float64, err error) {
	drain(to)
	var stop atomic.Bool
	sent := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		buf := make([]byte, write)
		for !stop.Load() {
			if _, err := unix.Write(from, buf); err != nil && !again(err) {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, read)
	total, start := 0, time.Now()
	for err == nil && going(time.Since(start), d, total) {
		var n int
		if n, err = unix.Read(to, buf); n > 0 {
			total += n
		}
		if again(err) {
			err = nil
		}
	}
	took := time.Since(start)
	stop.Store(true)
	drain(to) // so that the last write can end
	if err := errors.Join(err, <-sent); err != nil {
		return 0, err
	}
	if total == 0 {
		return 0, errors.New("nothing arrived")
	}
	return float64(total) / took.Seconds(), nil
}

// drain discards the received data of a socket.
func drain(fd int) {
	buf := make([]byte, tcpRead)
	for {
		if n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT); err != nil || n == 0 {
			return
		}
	}
}

// going reports whether a flow that was to last d goes on. On a busy machine it may have to
// last longer until anything has arrived.
func going(since, d time.Duration, arrived int) bool {
	return since < d || arrived == 0 && since < atMost
}

// again reports whether a call ended because it had to wait.
func again(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

// roundTrips returns the mean time of a datagram and its answer, in microseconds.
func (f *flow) roundTrips(d time.Duration) (float64, error) {
	from, to := int(f.udpFrom.Fd()), int(f.udpTo.Fd())
	drain(from)
	drain(to)
	var stop atomic.Bool
	answered := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		buf := make([]byte, smallPacket)
		for !stop.Load() {
			n, sender, err := unix.Recvfrom(to, buf, 0)
			if again(err) {
				continue
			}
			if err == nil {
				err = unix.Sendto(to, buf[:n], 0, sender)
			}
			if err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, smallPacket)
	trips, lost, start := 0, 0, time.Now()
	var err error
	for err == nil && going(time.Since(start), d, trips) {
		if _, err = unix.Write(from, buf); err != nil {
			break
		}
		if _, err = unix.Read(from, buf); again(err) {
			lost, err = lost+1, nil
			continue
		}
		trips++
	}
	took := time.Since(start) - time.Duration(lost)*patience
	stop.Store(true)
	_, _ = unix.Write(from, buf) // wakes the other end
	if err := errors.Join(err, <-answered); err != nil {
		return 0, err
	}
	if trips == 0 {
		return 0, errors.New("no answer arrived")
	}
	return float64(took.Nanoseconds()) / float64(trips) / 1000, nil
}
