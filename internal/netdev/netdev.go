// Package netdev is the node's hand on the kernel: it plugs and unplugs the
// interfaces of sandboxes and keeps the node's own part of the pod network
// (one bridge, its gateway addresses, the routes to the blocks of addresses)
// as it was told. It is the only importer of netlink in the product.
//
// Whatever it puts on a host can be told from what others put there: routes
// carry RouteProtocol, links an alias that begins with "fairlead ". It keeps no
// state of its own beyond open sockets; the kernel is asked each time.
package netdev

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes that are ours (rtm_protocol, rtnetlink(7)):
// no program listed in the kernel's rt_protos uses the number.
const RouteProtocol = 158

// LinkGroup is the group of the host ends of pods (ip-link(8)): the packet filter
// knows them by it, even before it knows whose they are.
const LinkGroup = 158

// DefaultBridge is the name of the bridge of the native default network.
const DefaultBridge = "fairlead0"

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
	// ErrNoUplink says that the node's uplink could not be made out.
	ErrNoUplink = errors.New("no uplink")
	// ErrInvalid says that what was asked for can never be done.
	ErrInvalid = errors.New("invalid")
)

// maxIdle is how many sockets are kept open for the next operations. One
// socket serialises its users, so there are as many as operations at once.
const maxIdle = 32

// maxPlugging is how many interfaces are plugged at once. The kernel changes one
// link after the other (rtnl_mutex), so with one at work and one ready more are not
// faster: each that waits in the kernel keeps a thread and, for a while, a processor
// busy, and here only a goroutine.
const maxPlugging = 2

// Kernel works on one host network namespace. Its methods may be called from
// many goroutines at once.
type Kernel struct {
	host *Namespace // nil: the one that the process is in
	ipv6 bool       // whether this kernel has it
	idle chan *conn
	// plugging has an entry for each interface that is being plugged.
	plugging chan struct{}

	removals singleflight.Group // by name of the host end

	applying sync.Mutex // one ApplyHost or CleanupHost at a time

	mu      sync.Mutex
	watched watched
}

// Open returns a Kernel for the network namespace that the process is in. It
// fails when the process may not open a netlink socket.
func Open() (*Kernel, error) {
	return openAt(nil)
}

func openAt(host *Namespace) (*Kernel, error) {
	_, noIPv6 := os.Stat(sysctlRoot + "net/ipv6")
	k := &Kernel{host: host, ipv6: noIPv6 == nil, idle: make(chan *conn, maxIdle), plugging: make(chan struct{}, maxPlugging)}
	c, err := k.conn()
	if err != nil {
		return nil, err
	}
	k.release(c)
	return k, nil
}

// Close gives the sockets back. Operations under way finish.
func (k *Kernel) Close() error {
	for {
		select {
		case c := <-k.idle:
			c.close()
		default:
			return nil
		}
	}
}

// conn takes an idle socket of the host namespace, or opens one.
func (k *Kernel) conn() (*conn, error) {
	select {
	case c := <-k.idle:
		return c, nil
	default:
	}
	var c *conn
	err := k.inHost(func() (err error) {
		c, err = dial()
		return err
	})
	return c, err
}

// release keeps the socket for the next operation, or closes it.
func (k *Kernel) release(c *conn) {
	if c.broken {
		c.close()
		return
	}
	select {
	case k.idle <- c:
	default:
		c.close()
	}
}

// handle opens the netlink library's own handle on the host namespace, for
// what is not on the path of a pod.
func (k *Kernel) handle() (*netlink.Handle, error) {
	var h *netlink.Handle
	err := k.inHost(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return h, nil
}

// inHost runs fn on a thread in the host namespace.
func (k *Kernel) inHost(fn func() error) error {
	if k.host == nil {
		return fn()
	}
	return k.host.do(fn)
}

// BootID returns the random number that the kernel gave to this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the kernel's boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
