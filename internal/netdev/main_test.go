package netdev

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// TestMain fails when the tests leave a link, a mounted namespace or an open
// one behind.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "netdev")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = os.Setenv("TMPDIR", dir) // so that our mounts can be told from others'
	// It stays open.
	if _, err := home(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
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

// leftOnHost lists what a careless test would leave behind.
func leftOnHost() ([]string, error) {
	var found []string
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if isHostName(l.Name) {
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

// needRoot skips a test that works on the real kernel.
func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: it makes network namespaces")
	}
}

// needIPv6 skips a test that goes over IPv6 where the kernel has none
// (ipv6.disable=1).
func needIPv6(tb testing.TB) {
	tb.Helper()
	if !netlab.HasIPv6() {
		tb.Skip("needs a kernel with IPv6: it gives links addresses of both families")
	}
}

// newNamespace makes a network namespace with a path, as a runtime does. It is
// gone when the test ends.
func newNamespace(tb testing.TB) *Namespace {
	tb.Helper()
	needRoot(tb)
	path := filepath.Join(tb.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- unshareAt(path) }()
	if err := <-done; err != nil {
		tb.Fatalf("making a namespace: %v", err)
	}
	tb.Cleanup(func() { dropPath(tb, path) })
	ns, err := OpenNamespace(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	return ns
}

// unshareAt makes a namespace on a borrowed thread and mounts it at path.
func unshareAt(path string) error {
	runtime.LockOSThread()
	home, err := os.Open(ownNamespace)
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Mount(ownNamespace, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return err // and the thread ends here
	}
	runtime.UnlockOSThread()
	return nil
}

// dropPath takes the namespace's path away, as a runtime does at the end.
func dropPath(tb testing.TB, path string) {
	tb.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		tb.Errorf("unmounting %s: %v", path, err)
	}
}

// in runs fn on a thread in the namespace.
func in(tb testing.TB, ns *Namespace, fn func() error) {
	tb.Helper()
	if err := ns.do(fn); err != nil {
		tb.Fatal(err)
	}
}

// newNode makes a namespace that plays the node, with nothing in it.
func newNode(tb testing.TB) *Kernel {
	tb.Helper()
	k, err := openAt(newNamespace(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = k.Close() })
	steps(tb, k, raise("lo"))
	return k
}

// newHost is a node with a bridge and nothing else.
func newHost(tb testing.TB) *Kernel {
	tb.Helper()
	k := newNode(tb)
	steps(tb, k, append(createBridge(DefaultBridge, bridgeMAC(DefaultBridge), 1500, k.ipv6), raise(DefaultBridge))...)
	return k
}

func steps(tb testing.TB, k *Kernel, steps ...step) {
	tb.Helper()
	c, err := k.conn()
	if err != nil {
		tb.Fatal(err)
	}
	defer k.release(c)
	if err := c.do(steps...); err != nil {
		tb.Fatal(err)
	}
}

// openHandle opens the library's handle in a namespace, for looking.
func openHandle(tb testing.TB, ns *Namespace) *netlink.Handle {
	tb.Helper()
	var h *netlink.Handle
	in(tb, ns, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	tb.Cleanup(h.Close)
	return h
}

func linkNamed(tb testing.TB, ns *Namespace, name string) netlink.Link {
	tb.Helper()
	link, err := openHandle(tb, ns).LinkByName(name)
	if err != nil {
		tb.Fatalf("looking at %s: %v", name, err)
	}
	return link
}

// linkNames lists the links of a namespace, in order.
func linkNames(tb testing.TB, ns *Namespace) []string {
	tb.Helper()
	links, err := openHandle(tb, ns).LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	names := map[string]bool{}
	for _, l := range links {
		names[l.Attrs().Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func mustAddr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// fits tells whether an error may be printed by the plugin: runtimes take
// these words for "it is gone".
func fits(tb testing.TB, err error) {
	tb.Helper()
	for _, words := range []string{"not found", "no such file"} {
		if strings.Contains(strings.ToLower(err.Error()), words) {
			tb.Errorf("error %q has the words %q, which runtimes take for success", err, words)
		}
	}
}

// reaches sends a datagram and opens a connection from one namespace to an
// address in another, and waits for what comes back.
func reaches(tb testing.TB, from, to *Namespace, target netip.Addr) {
	tb.Helper()
	if err := talk(tb, from, to, target, 5*time.Second); err != nil {
		tb.Errorf("%v is not reached: %v", target, err)
	}
}

func talk(tb testing.TB, from, to *Namespace, target netip.Addr, within time.Duration) error {
	tb.Helper()
	at := netip.AddrPortFrom(target, 4242).String()
	var packets net.PacketConn
	var listener net.Listener
	in(tb, to, func() (err error) {
		if packets, err = net.ListenPacket("udp", at); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", at)
		return err
	})
	defer packets.Close()
	defer listener.Close()
	go echoPackets(packets)
	go echoConnections(listener)

	for _, network := range []string{"udp", "tcp"} {
		var conn net.Conn
		err := from.do(func() (err error) {
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
		_, _ = io.CopyN(c, c, 4)
		_ = c.Close()
	}
}

// exchange sends until something comes back: the kernel may still be busy with
// the carrier of a link when the first packet is sent, and drops that.
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
