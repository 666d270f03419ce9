package link

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// answerTimeout bounds the wait for the kernel's answer, in seconds. The kernel answers
// before the send returns, so a wait means that an answer was lost.
const answerTimeout = 10

// bufferSize is enough, in bytes, for any answer to a change. Conn reads no other
// messages.
const bufferSize = 4 << 10

// buffers keeps the buffers of closed sockets, since the socket in a sandbox is closed
// after one interface.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Step is one change to the kernel. Its What names it in an error.
type Step struct {
	What     string
	Req      *nl.NetlinkRequest
	Optional bool // the kernel may refuse it
}

// Conn is a netlink socket of one namespace, for one user at a time. It sends many
// messages in one round trip; a socket of the library needs a round trip for each
// message.
type Conn struct {
	fd     int
	seq    uint32
	buf    *[bufferSize]byte
	broken bool // answers may be outstanding: the socket must not be used again
}

// dial opens a socket in the namespace of the calling thread.
func dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	// The kernel adds a sentence to its refusals, and does not copy the request. Old
	// kernels support neither option; their refusals are understood all the same.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTimeout})
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &Conn{fd: fd, buf: buffers.Get().(*[bufferSize]byte)}, nil
}

// Broken reports whether answers may be outstanding. The kernel may have executed the
// requests; the socket is not used again.
func (c *Conn) Broken() bool { return c.broken }

func (c *Conn) close() {
	_ = unix.Close(c.fd)
	buffers.Put(c.buf)
}

// Do sends all steps at once. The kernel does them in order, and continues after a step
// that fails. Do returns the error of the first failed step that is not optional.
func (c *Conn) Do(steps ...Step) error {
	if len(steps) == 0 {
		return nil
	}
	var out []byte
	first := c.seq + 1
	for _, s := range steps {
		c.seq++
		s.Req.Seq = c.seq
		s.Req.Flags |= unix.NLM_F_ACK
		out = append(out, s.Req.Serialize()...)
	}
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		c.broken = true
		return fmt.Errorf("%s: sending to the kernel: %w", steps[0].What, err)
	}
	var failed error
	for left := len(steps); left > 0; {
		msgs, err := c.receive()
		if err != nil {
			c.broken = true
			return fmt.Errorf("%s: the kernel's answer: %w", steps[0].What, err)
		}
		for _, m := range msgs {
			n := int(m.Header.Seq - first)
			if m.Header.Type != unix.NLMSG_ERROR || n < 0 || n >= len(steps) {
				continue
			}
			left--
			if err := ackError(m); err != nil && failed == nil && !steps[n].Optional {
				failed = fmt.Errorf("%s: %w", steps[n].What, err)
			}
		}
	}
	return failed
}

func (c *Conn) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue // not from the kernel
		}
		return syscall.ParseNetlinkMessage(c.buf[:n])
	}
}

// ackError returns nil if an NLMSG_ERROR acknowledges a change, otherwise the errno with
// the sentence that the kernel adds (NLMSGERR_ATTR_MSG).
func ackError(m syscall.NetlinkMessage) error {
	native := nl.NativeEndian()
	if len(m.Data) < 4+unix.SizeofNlMsghdr {
		return errors.New("short answer of the kernel")
	}
	errno := -int32(native.Uint32(m.Data))
	if errno == 0 {
		return nil
	}
	err := unix.Errno(errno)
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	rest := m.Data[4+unix.SizeofNlMsghdr:]
	if m.Header.Flags&unix.NLM_F_CAPPED == 0 { // the request is echoed whole
		rest = m.Data[min(len(m.Data), 4+align4(int(native.Uint32(m.Data[4:])))):]
	}
	attrs, parseErr := nl.ParseRouteAttr(rest)
	if parseErr != nil {
		return err
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%w (%s)", err, unix.ByteSliceToString(a.Value))
		}
	}
	return err
}

func align4(n int) int { return (n + 3) &^ 3 }

// Index returns the index of the link called name, 0 if there is none. It uses an ioctl,
// which unlike a netlink request does not wait for the lock of all changes (RTNL).
func (c *Conn) Index(name string) (int, error) {
	n, err := c.ioctl(name, unix.SIOCGIFINDEX)
	return int(n), err
}

// MTU returns the MTU in bytes of the link called name, 0 if there is none.
func (c *Conn) MTU(name string) (int, error) {
	n, err := c.ioctl(name, unix.SIOCGIFMTU)
	return int(n), err
}

// Up reports whether the link called name is up.
func (c *Conn) Up(name string) (bool, error) {
	n, err := c.ioctl(name, unix.SIOCGIFFLAGS)
	return n&unix.IFF_UP != 0, err
}

func (c *Conn) ioctl(name string, op uint) (uint32, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("%w: interface name %q", ErrInvalid, name)
	}
	err = unix.IoctlIfreq(c.fd, op, ifr)
	if errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("asking for interface %s: %w", name, err)
	}
	if op == unix.SIOCGIFFLAGS {
		return uint32(ifr.Uint16()), nil
	}
	return ifr.Uint32(), nil
}
