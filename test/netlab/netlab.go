// Package netlab makes nodes out of network namespaces: a switch, which is a namespace
// with a bridge, and nodes, each a namespace with one link to it. The demo, the
// benchmarks and the end-to-end tests run the real programs on such nodes. It needs root
// and removes everything at the end.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// BridgeName is the bridge of the switch.
	BridgeName = "lab0"
	// Uplink is the link of a node to the switch.
	Uplink = "eth0"
	// PortPrefix is the prefix of the names of the switch's ports: lab-1 leads to the
	// first node.
	PortPrefix = "lab-"

	// MaxNodes is how many nodes fit between the first node's address and the end of a
	// /24.
	MaxNodes = 200

	switchHost    = 1  // 192.168.77.1
	firstNodeHost = 11 // 192.168.77.11
)

// Config is the configuration of a laboratory. All fields but Nodes may be zero.
type Config struct {
	// Nodes is how many nodes to make, 0 to MaxNodes.
	Nodes int
	// V4 and V6 are the prefixes of the link, by default 192.168.77.0/24 and
	// fd00:77::/64. The switch has host number 1, the nodes 11, 12, ..., in IPv6 with the
	// same digits.
	V4, V6 netip.Prefix
	// IPv4Only omits IPv6, for kernels without it. IPv6Only omits IPv4.
	IPv4Only, IPv6Only bool
	// Here makes the caller's network namespace the switch, so that the process can talk
	// to its nodes; otherwise the switch is a new namespace.
	Here bool
}

// HasIPv6 reports whether this kernel has IPv6. Without it (ipv6.disable=1) only
// laboratories with IPv4Only work.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// Machine is the switch or a node.
type Machine struct {
	*Namespace
	// Name is "switch", or "node-1", "node-2", ...
	Name string
	// V4 and V6 are its addresses on the link, with the link's prefix length. The address
	// of an omitted family is the zero prefix.
	V4, V6 netip.Prefix
}

// Lab is a switch with nodes.
type Lab struct {
	Switch *Machine
	Nodes  []*Machine
}

// New makes a laboratory. On an error nothing is left.
func New(ctx context.Context, cfg Config) (lab *Lab, err error) {
	if cfg.Nodes < 0 || cfg.Nodes > MaxNodes {
		return nil, fmt.Errorf("lab: %d nodes; must be 0 to %d", cfg.Nodes, MaxNodes)
	}
	if !cfg.V4.IsValid() {
		cfg.V4 = netip.MustParsePrefix("192.168.77.0/24")
	}
	if !cfg.V6.IsValid() {
		cfg.V6 = netip.MustParsePrefix("fd00:77::/64")
	}
	if !cfg.V4.Addr().Is4() || cfg.V4.Bits() > 24 || !cfg.V6.Addr().Is6() || cfg.V6.Bits() > 112 {
		return nil, fmt.Errorf("lab: prefixes %v and %v; must be an IPv4 /24 or shorter and an IPv6 /112 or shorter", cfg.V4, cfg.V6)
	}
	if cfg.IPv4Only && cfg.IPv6Only {
		return nil, errors.New("lab: IPv4Only and IPv6Only; must be one of them at most")
	}
	lab = &Lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, lab.Close())
			lab = nil
		}
	}()
	if err := lab.makeSwitch(cfg); err != nil {
		return lab, fmt.Errorf("lab switch: %w", err)
	}
	for i := range cfg.Nodes {
		if err := ctx.Err(); err != nil {
			return lab, err
		}
		if err := lab.makeNode(cfg, i); err != nil {
			return lab, fmt.Errorf("lab node %d: %w", i+1, err)
		}
	}
	return lab, nil
}

// Close removes the laboratory. Its processes should have ended: a node with running
// processes stays with them, without its link.
func (l *Lab) Close() error {
	var errs []error
	if l.Switch != nil {
		errs = append(errs, l.removeLinks(), l.Switch.Close())
	}
	for _, node := range l.Nodes {
		errs = append(errs, node.Close())
	}
	l.Switch, l.Nodes = nil, nil
	return errors.Join(errs...)
}

func (l *Lab) makeSwitch(cfg Config) error {
	open := NewNamespace
	if cfg.Here {
		open = Current
	}
	ns, err := open()
	if err != nil {
		return err
	}
	l.Switch = machine(ns, "switch", cfg, switchHost)
	if cfg.Here {
		if err := ns.loopbackUp(); err != nil {
			return err
		}
	}
	handle, err := ns.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: BridgeName}}
	if err := handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s: %w", BridgeName, err)
	}
	return l.Switch.configure(handle, BridgeName)
}

func (l *Lab) makeNode(cfg Config, i int) error {
	ns, err := NewNamespace()
	if err != nil {
		return err
	}
	node := machine(ns, fmt.Sprintf("node-%d", i+1), cfg, firstNodeHost+i)
	l.Nodes = append(l.Nodes, node)
	return l.plugNode(node, i)
}

// plugNode links the i-th node to the switch.
func (l *Lab) plugNode(node *Machine, i int) error {
	sw, err := l.Switch.Netlink()
	if err != nil {
		return err
	}
	defer sw.Close()
	bridge, err := sw.LinkByName(BridgeName)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", BridgeName, err)
	}
	port := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: portName(i), MasterIndex: bridge.Attrs().Index},
		PeerName:      Uplink,
		PeerNamespace: netlink.NsFd(int(node.file.Fd())),
	}
	if err := sw.LinkAdd(port); err != nil {
		return fmt.Errorf("add port %s: %w", port.Name, err)
	}
	if err := sw.LinkSetUp(port); err != nil {
		return fmt.Errorf("set port %s up: %w", port.Name, err)
	}

	handle, err := node.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := node.configure(handle, Uplink); err != nil {
		return err
	}
	if err := node.awaitRoutes(handle); err != nil {
		return err
	}
	return addDefaultRoutes(handle, l.Switch)
}

// removeLinks removes the laboratory's links from the namespace of the switch, which may
// be the caller's and then stays.
func (l *Lab) removeLinks() error {
	handle, err := l.Switch.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	names := []string{BridgeName}
	for i := range l.Nodes {
		names = append(names, portName(i))
	}
	// Each deletion waits in the kernel, but several can wait at the same time.
	results := make(chan error, len(names))
	for _, name := range names {
		go func() { results <- removeLink(handle, name) }()
	}
	var errs []error
	for range names {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

func removeLink(handle *netlink.Handle, name string) error {
	link, err := handle.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := handle.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func machine(ns *Namespace, name string, cfg Config, host int) *Machine {
	m := &Machine{Namespace: ns, Name: name}
	if !cfg.IPv6Only {
		m.V4 = netip.PrefixFrom(hostV4(cfg.V4, host), cfg.V4.Bits())
	}
	if !cfg.IPv4Only {
		m.V6 = netip.PrefixFrom(hostV6(cfg.V6, host), cfg.V6.Bits())
	}
	return m
}

// Addresses returns the addresses on the link, IPv4 first.
func (m *Machine) Addresses() []netip.Prefix {
	return slices.DeleteFunc([]netip.Prefix{m.V4, m.V6}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// configure gives a link the machine's addresses and sets it up.
func (m *Machine) configure(handle *netlink.Handle, name string) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	for _, prefix := range m.Addresses() {
		addr := &netlink.Addr{IPNet: ipNet(prefix)}
		if prefix.Addr().Is6() {
			// There is no other machine on this link, and duplicate address detection
			// would cost a second.
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %v to %s: %w", prefix, name, err)
		}
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

// readyTimeout bounds the wait until a machine reaches its own addresses.
const readyTimeout = 10 * time.Second

// awaitRoutes waits until the machine has routes to its own addresses. The kernel adds those of
// IPv6 when it has noticed the carrier of the link, which takes a while on a busy machine.
func (m *Machine) awaitRoutes(handle *netlink.Handle) error {
	deadline := time.Now().Add(readyTimeout)
	for _, prefix := range m.Addresses() {
		for {
			routes, err := handle.RouteGet(prefix.Addr().AsSlice())
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(deadline) {
				return errors.Join(fmt.Errorf("no route to its own address %v after %s, but %v", prefix.Addr(), readyTimeout, routes), err)
			}
			<-time.After(time.Millisecond)
		}
	}
	return nil
}

func addDefaultRoutes(handle *netlink.Handle, gateway *Machine) error {
	link, err := handle.LinkByName(Uplink)
	if err != nil {
		return fmt.Errorf("find link %s: %w", Uplink, err)
	}
	for _, via := range gateway.Addresses() {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.Addr().AsSlice()}
		if err := handle.RouteAdd(route); err != nil {
			return fmt.Errorf("add default route via %v: %w", via.Addr(), err)
		}
	}
	return nil
}

func portName(i int) string { return fmt.Sprintf("%s%d", PortPrefix, i+1) }

func hostV4(prefix netip.Prefix, host int) netip.Addr {
	raw := prefix.Masked().Addr().As4()
	raw[3] = byte(host)
	return netip.AddrFrom4(raw)
}

// hostV6 writes the decimal digits of host as hexadecimal digits, so that the two
// addresses of a machine look alike: 192.168.77.11 and fd00:77::11.
func hostV6(prefix netip.Prefix, host int) netip.Addr {
	raw := prefix.Masked().Addr().As16()
	digits := host/100<<8 | host/10%10<<4 | host%10
	raw[14], raw[15] = byte(digits>>8), byte(digits)
	return netip.AddrFrom16(raw)
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}
