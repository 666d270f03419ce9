// Package nettest has the common parts of the tests of internal/netdev: network
// namespaces that stand for nodes and pods, functions to inspect them, and traffic
// between them.
package nettest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Main runs the tests of a package. It fails if they leave a link, a mounted namespace or
// an open namespace behind.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "netdev")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = os.Setenv("TMPDIR", dir) // distinguishes the mounts of these tests from others
	// Opening the first namespace also opens that of the process, which stays open.
	if ns, err := link.OpenNamespace(OwnNamespace); err == nil {
		_ = ns.Close()
	}
	before, err := leftOnHost()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	after, err := leftOnHost()
	_ = os.Remove(dir)
	if diff := cmp.Diff(before, after); err != nil || diff != "" {
		fmt.Fprintf(os.Stderr, "left behind on the host (-before +after): %v\n%s", err, diff)
		code = 1
	}
	os.Exit(code)
}

// isHostEnd reports whether a name is that of a host end of a pod.
func isHostEnd(name string) bool {
	digits, ok := strings.CutPrefix(name, "fl")
	return ok && len(digits) == 13 && strings.Trim(digits, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// leftOnHost lists links and namespaces that a test may have left behind.
func leftOnHost() ([]string, error) {
	var found []string
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if isHostEnd(l.Name) {
			found = append(found, l.Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " - nsfs ") && strings.Contains(line, os.TempDir()) {
			found = append(found, line)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "net:") {
			found = append(found, to)
		}
	}
	return found, nil
}

// DefaultBridge is the name of the bridge of NewHost.
const DefaultBridge = "fairlead0"

// OwnNamespace is the namespace of the calling thread.
const OwnNamespace = "/proc/thread-self/ns/net"

// Missing skips a test for which this machine lacks something. In the VM of test/vm, which
// has everything that tests need, it fails the test.
func Missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("FAIRLEAD_VM") == "1" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}

// NeedRoot skips a test that needs the real kernel if it does not run as root.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		Missing(tb, "needs root: it makes network namespaces")
	}
}

// NeedIPv6 skips a test of IPv6 if the kernel has no IPv6 (ipv6.disable=1).
func NeedIPv6(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		Missing(tb, "needs a kernel with IPv6: it gives links addresses of both families")
	}
}

// NewNamespace makes a network namespace with a path, as a runtime does. The end of the
// test removes it.
func NewNamespace(tb testing.TB) *link.Namespace {
	tb.Helper()
	NeedRoot(tb)
	path := filepath.Join(tb.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- unshareAt(path) }()
	if err := <-done; err != nil {
		tb.Fatalf("making a namespace: %v", err)
	}
	tb.Cleanup(func() { DropPath(tb, path) })
	ns, err := link.OpenNamespace(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	return ns
}

// unshareAt makes a namespace on a borrowed thread and mounts it at path.
func unshareAt(path string) error {
	runtime.LockOSThread()
	home, err := os.Open(OwnNamespace)
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Mount(OwnNamespace, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return err // the thread ends here
	}
	runtime.UnlockOSThread()
	return nil
}

// DropPath removes the namespace's path, as a runtime does at the end.
func DropPath(tb testing.TB, path string) {
	tb.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		tb.Errorf("unmounting %s: %v", path, err)
	}
}

// In runs fn on a thread in the namespace.
func In(tb testing.TB, ns *link.Namespace, fn func() error) {
	tb.Helper()
	if err := ns.Do(fn); err != nil {
		tb.Fatal(err)
	}
}

// NewNode makes a namespace that stands for the node, without any objects.
func NewNode(tb testing.TB) *link.Sockets {
	tb.Helper()
	s, err := link.OpenAt(NewNamespace(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	Steps(tb, s, link.Raise("lo"))
	return s
}

// NewHost makes a node with a bridge and nothing more.
func NewHost(tb testing.TB) *link.Sockets {
	tb.Helper()
	s := NewNode(tb)
	AddBridge(tb, s.Namespace(), DefaultBridge, 1500)
	Steps(tb, s, link.Raise(DefaultBridge))
	return s
}

// AddBridge makes a bridge in a namespace, down, like that of the host: it keeps its MTU
// and MAC when ports come and go, and gets no address from the kernel.
func AddBridge(tb testing.TB, ns *link.Namespace, name string, mtu int) {
	tb.Helper()
	h := OpenHandle(tb, ns)
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name, bridge.HardwareAddr = name, net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1}
	err := errors.Join(h.LinkAdd(bridge), h.LinkSetMTU(bridge, mtu-1), h.LinkSetMTU(bridge, mtu))
	if _, no := os.Stat("/proc/sys/net/ipv6"); no == nil {
		err = errors.Join(err, h.LinkSetIP6AddrGenMode(bridge, 1)) // IN6_ADDR_GEN_MODE_NONE
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Cable describes the other end of a veth.
type Cable struct {
	To   *link.Namespace
	Name string
	MTU  int
}

// AddCable makes a veth from a port of the bridge with this index to an interface in
// another namespace.
func AddCable(tb testing.TB, from *link.Namespace, port string, bridge int, c Cable) {
	tb.Helper()
	h := OpenHandle(tb, from)
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: c.Name, PeerNamespace: netlink.NsFd(c.To.FD())}
	veth.Name, veth.MTU, veth.MasterIndex = port, c.MTU, bridge
	if err := errors.Join(h.LinkAdd(veth), h.LinkSetUp(veth)); err != nil {
		tb.Fatal(err)
	}
}

// Steps makes changes in a namespace.
func Steps(tb testing.TB, s *link.Sockets, steps ...link.Step) {
	tb.Helper()
	c, err := s.Conn()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Release(c)
	if err := c.Do(steps...); err != nil {
		tb.Fatal(err)
	}
}

// Must ends the test if there is an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// OpenHandle opens the library's handle in a namespace, for reading.
func OpenHandle(tb testing.TB, ns *link.Namespace) *netlink.Handle {
	tb.Helper()
	h, err := ns.Handle()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(h.Close)
	return h
}

// Routes returns the destinations of a namespace's routes of a protocol, in the main table.
func Routes(tb testing.TB, ns *link.Namespace, protocol netlink.RouteProtocol) (out []netip.Prefix) {
	tb.Helper()
	routes, err := OpenHandle(tb, ns).RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range routes {
		if p, ok := link.ToPrefix(r.Dst); ok {
			out = append(out, p)
		}
	}
	return out
}

// LinkNamed returns a link of a namespace. It leaves no socket open, which would hold the
// namespace.
func LinkNamed(tb testing.TB, ns *link.Namespace, name string) netlink.Link {
	tb.Helper()
	h := OpenHandle(tb, ns)
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		tb.Fatalf("looking at %s: %v", name, err)
	}
	return link
}

// LinkNames lists the links of a namespace, in order. It leaves no socket open, which would
// hold the namespace.
func LinkNames(tb testing.TB, ns *link.Namespace) []string {
	tb.Helper()
	h := OpenHandle(tb, ns)
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	names := map[string]bool{}
	for _, l := range links {
		names[l.Attrs().Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Addr parses an address.
func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// Prefix parses an address with a prefix length.
func Prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Pod parses the addresses of a pod, and returns with them the gateways that the default
// network has for their families.
func Pod(addresses ...string) (prefixes []netip.Prefix, gateways []netip.Addr) {
	for _, a := range addresses {
		prefix := Prefix(a)
		prefixes = append(prefixes, prefix)
		if prefix.Addr().Is4() {
			gateways = append(gateways, Addr("169.254.1.1"))
		} else {
			gateways = append(gateways, Addr("fe80::1"))
		}
	}
	return prefixes, gateways
}

// SameAddr compares addresses.
var SameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// PodIPs reads the addresses of global scope of an interface in a namespace: IPv4 first,
// then IPv6, each in the kernel's order. Errors: ErrNoLink if there is no such interface.
func PodIPs(ns *link.Namespace, ifname string) ([]netip.Addr, error) {
	h, err := ns.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	dev, err := h.LinkByName(ifname)
	if link.IsNoLink(err) {
		return nil, fmt.Errorf("%w: %s in the namespace at %q", link.ErrNoLink, ifname, ns.Path())
	}
	if err != nil {
		return nil, fmt.Errorf("looking at %s in the namespace at %q: %w", ifname, ns.Path(), err)
	}
	var ips []netip.Addr
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		addrs, _, err := link.GlobalAddresses(context.Background(), h, dev, f)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			ips = append(ips, a.Addr())
		}
	}
	return ips, nil
}

// AddDevice makes a link that stands for a device of a node, up, with a carrier. Its other
// end is in the same namespace, with an "x" before its name.
func AddDevice(tb testing.TB, s *link.Sockets, name string) {
	tb.Helper()
	h := OpenHandle(tb, s.Namespace())
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "x" + name}
	veth.Name = name
	if err := h.LinkAdd(veth); err != nil {
		tb.Fatal(err)
	}
	Steps(tb, s, link.Raise(name), link.Raise("x"+name))
}

// NeedLinkType skips a test if the kernel does not have a type of links that are made on a
// parent (ip-link(8)).
func NeedLinkType(tb testing.TB, linkType string) {
	tb.Helper()
	node := NewNode(tb)
	AddDevice(tb, node, "parent")
	attrs := netlink.LinkAttrs{Name: "probe", ParentIndex: LinkNamed(tb, node.Namespace(), "parent").Attrs().Index}
	var probe netlink.Link
	switch linkType {
	case "macvlan":
		probe = &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	case "ipvlan":
		probe = &netlink.IPVlan{LinkAttrs: attrs}
	case "vlan":
		probe = &netlink.Vlan{LinkAttrs: attrs, VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	default:
		tb.Fatalf("no probe for links of the type %s", linkType)
	}
	if err := OpenHandle(tb, node.Namespace()).LinkAdd(probe); err != nil {
		Missing(tb, "needs a kernel with links of the type %s: %v", linkType, err)
	}
}
