// Package link gives the packages beside it access to the kernel: netlink sockets that
// are kept open, messages, network namespaces and settings under /proc/sys.
//
// Only link and the packages beside it import netlink.
package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes of Fairlead (rtm_protocol, rtnetlink(7)): no program in
// the kernel's list rt_protos uses the number.
const RouteProtocol = 158

// Groups of links (ip-link(8)) that the rules of the packet filter name, so that they need no name of
// a pod's link.
const (
	// GroupPort is that of host ends that are ports of bridges, and of pods' links without a host end.
	// Packets from them are dropped until the packet filter knows their pods.
	GroupPort = 158
	// GroupRouted is that of host ends to which the node routes the addresses of pods.
	GroupRouted = 159
	// GroupLeg is that of such ends whose interface has no addresses of its own.
	GroupLeg = 160
)

// Errors that callers test with errors.Is.
var (
	// ErrNotNamespace means that a path does not lead to the network namespace of a
	// sandbox.
	ErrNotNamespace = errors.New("not the network namespace of a sandbox")
	// ErrExists means that another interface has the name.
	ErrExists = errors.New("interface exists already")
	// ErrNoBridge means that the bridge to plug into is missing on this node.
	ErrNoBridge = errors.New("bridge is missing on this node")
	// ErrNoParent means that the link of the node that an interface is made on, or made of,
	// is missing or down.
	ErrNoParent = errors.New("link of the node is missing or down")
	// ErrNoLink means that the requested interface is missing.
	ErrNoLink = errors.New("interface is missing")
	// ErrInvalid means that a request can never succeed.
	ErrInvalid = errors.New("invalid")
)

// Invalid returns an ErrInvalid about a field with its value, nil if err is nil. err
// describes the accepted values.
func Invalid(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s %w", ErrInvalid, field, err)
}

// maxIdle is how many sockets are kept open for the next operations. A socket has one
// user at a time, so there are as many sockets as concurrent operations.
const maxIdle = 32

// Sockets are open sockets on one network namespace, the host's. Its methods may be
// called concurrently.
type Sockets struct {
	// IPv6 is true if this kernel has IPv6.
	IPv6 bool

	host *Namespace // nil: that of the process
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

// Close closes the idle sockets. Running operations finish.
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

// Namespace returns the namespace of the sockets, nil for that of the process.
func (s *Sockets) Namespace() *Namespace { return s.host }

// Home returns the namespace of the sockets, also if it is that of the process. The caller
// does not close it.
func (s *Sockets) Home() (*Namespace, error) {
	if s.host != nil {
		return s.host, nil
	}
	return home()
}

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

// Handle opens a handle of the netlink library, for work that delays no pod.
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

// Links lists the links of the host. Errors: those of Dump.
func (s *Sockets) Links(ctx context.Context) ([]netlink.Link, error) {
	h, err := s.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return Dump(ctx, "listing links", h.LinkList)
}

// RefuseHost returns ErrNotNamespace if a namespace is that of the sockets, the host's.
func (s *Sockets) RefuseHost(ns *Namespace) error {
	if s.host != nil && s.host.ID() == ns.ID() {
		return NotNamespace(ns.Path(), "it is the host's")
	}
	return nil
}

// In runs fn on a thread in the namespace.
func (s *Sockets) In(fn func() error) error {
	if s.host == nil {
		return fn()
	}
	return s.host.Do(fn)
}

// BootID returns the random ID that the kernel gave to this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the kernel's boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
