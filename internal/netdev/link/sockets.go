// Package link has the means by which the packages beside it talk to the kernel:
// netlink sockets that are kept open, messages, network namespaces and settings under
// /proc/sys.
//
// Only link and the packages beside it import netlink.
package link

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes that are ours (rtm_protocol, rtnetlink(7)):
// no program listed in the kernel's rt_protos uses the number.
const RouteProtocol = 158

// Errors that callers decide on with errors.Is.
var (
	// ErrNotNamespace says that a path does not lead to the network namespace
	// of a sandbox.
	ErrNotNamespace = errors.New("not the network namespace of a sandbox")
	// ErrExists says that an interface of that name is there already.
	ErrExists = errors.New("interface exists already")
	// ErrNoBridge says that the bridge to plug into is missing on this node.
	ErrNoBridge = errors.New("bridge is missing on this node")
	// ErrNoLink says that the interface asked for is missing.
	ErrNoLink = errors.New("interface is missing")
	// ErrInvalid says that what was asked for can never be done.
	ErrInvalid = errors.New("invalid")
)

// maxIdle is how many sockets are kept open for the next operations. A socket has one
// user at a time, so there are as many sockets as operations at once.
const maxIdle = 32

// Sockets are open sockets on one network namespace, the host's. Its methods may be
// called from many goroutines at once.
type Sockets struct {
	// IPv6 tells whether this kernel has it.
	IPv6 bool

	host *Namespace // nil: the one that the process is in
	idle chan *Conn
}

// Open opens sockets on the network namespace of the process. Errors: the kernel's, if
// the process may not open a netlink socket.
func Open() (*Sockets, error) { return OpenAt(nil) }

// OpenAt opens sockets on a namespace; nil is that of the process.
func OpenAt(host *Namespace) (*Sockets, error) {
	_, noIPv6 := os.Stat(sysctlRoot + "net/ipv6")
	s := &Sockets{host: host, IPv6: noIPv6 == nil, idle: make(chan *Conn, maxIdle)}
	c, err := s.Conn()
	if err != nil {
		return nil, err
	}
	s.Release(c)
	return s, nil
}

// Close gives the sockets back. Operations under way finish.
func (s *Sockets) Close() error {
	for {
		select {
		case c := <-s.idle:
			c.close()
		default:
			return nil
		}
	}
}

// Namespace returns the namespace that the sockets are on, nil for that of the process.
func (s *Sockets) Namespace() *Namespace { return s.host }

// Conn takes an idle socket, or opens one.
func (s *Sockets) Conn() (*Conn, error) {
	select {
	case c := <-s.idle:
		return c, nil
	default:
	}
	var c *Conn
	err := s.In(func() (err error) {
		c, err = dial()
		return err
	})
	return c, err
}

// Release keeps the socket for the next operation, or closes it.
func (s *Sockets) Release(c *Conn) {
	if c.broken {
		c.close()
		return
	}
	select {
	case s.idle <- c:
	default:
		c.close()
	}
}

// Handle opens a handle of the netlink library, for work that no pod waits for.
func (s *Sockets) Handle() (*netlink.Handle, error) {
	var h *netlink.Handle
	err := s.In(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return h, nil
}

// In runs fn on a thread in the namespace.
func (s *Sockets) In(fn func() error) error {
	if s.host == nil {
		return fn()
	}
	return s.host.Do(fn)
}

// BootID returns the random number that the kernel gave to this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the kernel's boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
