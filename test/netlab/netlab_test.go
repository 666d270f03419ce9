package netlab_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/test/netlab"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
}

func newLab(t *testing.T, cfg netlab.Config) *netlab.Lab {
	t.Helper()
	if !cfg.IPv4Only && !netlab.HasIPv6() {
		t.Skip("needs a kernel with IPv6: the lab has it")
	}
	lab, err := netlab.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab
}

func TestAddresses(t *testing.T) {
	needRoot(t)
	lab := newLab(t, netlab.Config{Nodes: 2})
	type machine struct{ Name, V4, V6 string }
	var got []machine
	for _, m := range append([]*netlab.Machine{lab.Switch}, lab.Nodes...) {
		got = append(got, machine{m.Name, m.V4.String(), m.V6.String()})
	}
	want := []machine{
		{"switch", "192.168.77.1/24", "fd00:77::1/64"},
		{"node-1", "192.168.77.11/24", "fd00:77::11/64"},
		{"node-2", "192.168.77.12/24", "fd00:77::12/64"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("machines (-want +got):\n%s", diff)
	}
}

// serve answers every connection with a word.
func serve(t *testing.T, ns *netlab.Namespace, addr netip.Addr, word string) net.Addr {
	t.Helper()
	listener, err := ns.Listen(t.Context(), netip.AddrPortFrom(addr, 0).String())
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
			_, _ = io.WriteString(conn, word)
			conn.Close()
		}
	}()
	return listener.Addr()
}

func ask(ctx context.Context, ns *netlab.Namespace, addr string) (string, error) {
	var answer []byte
	err := ns.Do(func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err = io.ReadAll(conn)
		return err
	})
	return string(answer), err
}

func TestNodesReachEachOther(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		cfg      netlab.Config
		families int
	}{
		{netlab.Config{Nodes: 2, IPv4Only: true}, 1}, {netlab.Config{Nodes: 2}, 2}, {netlab.Config{Nodes: 2, IPv6Only: true}, 1},
	} {
		lab := newLab(t, tt.cfg)
		machines := append([]*netlab.Machine{lab.Switch}, lab.Nodes...)
		for _, to := range machines {
			if n := len(to.Addresses()); n != tt.families {
				t.Errorf("%s has %d addresses, want %d", to.Name, n, tt.families)
			}
			for _, addr := range to.Addresses() {
				at := serve(t, to.Namespace, addr.Addr(), to.Name)
				for _, from := range machines {
					got, err := ask(t.Context(), from.Namespace, at.String())
					if err != nil || got != to.Name {
						t.Errorf("%s asks %v: got %q, %v; want %q", from.Name, at, got, err, to.Name)
					}
				}
			}
		}
	}
}

func TestHereLeavesNothing(t *testing.T) {
	needRoot(t)
	// The test does not use its own network: "here" is a namespace too.
	here, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	err = here.Do(func() error {
		lab, err := netlab.New(t.Context(), netlab.Config{Nodes: 3, Here: true, IPv4Only: !netlab.HasIPv6()})
		if err != nil {
			return err
		}
		if diff := cmp.Diff([]string{"lab-1", "lab-2", "lab-3", "lab0", "lo"}, linkNames(t, here)); diff != "" {
			t.Errorf("links of the switch (-want +got):\n%s", diff)
		}
		return lab.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lo"}, linkNames(t, here)); diff != "" {
		t.Errorf("links after Close (-want +got):\n%s", diff)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	needRoot(t)
	here, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = here.Do(func() error {
		_, err := netlab.New(ctx, netlab.Config{Nodes: 1, Here: true, IPv4Only: !netlab.HasIPv6()})
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("New: %v; want %v", err, context.Canceled)
	}
	if diff := cmp.Diff([]string{"lo"}, linkNames(t, here)); diff != "" {
		t.Errorf("links after the failure (-want +got):\n%s", diff)
	}
}

func linkNames(t *testing.T, ns *netlab.Namespace) []string {
	t.Helper()
	handle, err := ns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range links {
		// A kernel may give each namespace idle tunnel links of its own.
		if link.Type() == "veth" || link.Type() == "bridge" || link.Attrs().Name == "lo" {
			names = append(names, link.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestStart(t *testing.T) {
	needRoot(t)
	lab := newLab(t, netlab.Config{Nodes: 1, IPv4Only: !netlab.HasIPv6()})
	var out strings.Builder
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	cmd.Stdout = &out
	if err := lab.Nodes[0].Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	var want string
	err := lab.Nodes[0].Do(func() (err error) {
		want, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != want {
		t.Errorf("the process is in %s; want %s", got, want)
	}
	if own, err := os.Readlink("/proc/self/ns/net"); err != nil || own == want {
		t.Errorf("the test itself is in %s (%v); want its own namespace", own, err)
	}
}

func TestPathIsForOthers(t *testing.T) {
	needRoot(t)
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	again, err := netlab.OpenNamespace(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	inode := func(ns *netlab.Namespace) (id string) {
		if err := ns.Do(func() (err error) { id, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
			t.Fatal(err)
		}
		return id
	}
	if a, b := inode(ns), inode(again); a != b {
		t.Errorf("Path leads to %s; want %s", b, a)
	}
}

func TestBadInput(t *testing.T) {
	needRoot(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		call func() error
		want string
	}{
		{"too many nodes", func() error { _, err := netlab.New(t.Context(), netlab.Config{Nodes: 201}); return err }, "201 nodes"},
		{"negative nodes", func() error { _, err := netlab.New(t.Context(), netlab.Config{Nodes: -1}); return err }, "-1 nodes"},
		{"neither family", func() error {
			_, err := netlab.New(t.Context(), netlab.Config{IPv4Only: true, IPv6Only: true})
			return err
		}, "IPv6Only"},
		{"families swapped", func() error {
			_, err := netlab.New(t.Context(), netlab.Config{V4: netip.MustParsePrefix("fd00::/64")})
			return err
		}, "fd00::/64"},
		{"not a namespace", func() error { _, err := netlab.OpenNamespace(file); return err }, file},
		{"a namespace of another kind", func() error { _, err := netlab.OpenNamespace("/proc/self/ns/mnt"); return err }, "/proc/self/ns/mnt"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.call(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v; want an error with %q", err, tt.want)
			}
		})
	}
}

func TestForward(t *testing.T) {
	needRoot(t)
	lab := newLab(t, netlab.Config{Nodes: 1, IPv4Only: !netlab.HasIPv6()})
	target, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		for {
			conn, err := target.Accept()
			if err != nil {
				return
			}
			// The answer needs the end of the question, so half-closing must work.
			question, _ := io.ReadAll(conn)
			_, _ = conn.Write([]byte(strings.ToUpper(string(question))))
			conn.Close()
		}
	}()
	listener, err := lab.Switch.Listen(t.Context(), netip.AddrPortFrom(lab.Switch.V4.Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- netlab.Forward(ctx, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", target.Addr().String())
		})
	}()
	var answer []byte
	err = lab.Nodes[0].Do(func() error {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "hello"); err != nil {
			return err
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		answer, err = io.ReadAll(conn)
		return err
	})
	if err != nil || string(answer) != "HELLO" {
		t.Errorf("answer %q, %v; want %q", answer, err, "HELLO")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Forward after its context ended: %v; want nil", err)
	}
}

func TestWire(t *testing.T) {
	needRoot(t)
	lab := newLab(t, netlab.Config{Nodes: 2})
	before := [2][]string{linkNames(t, lab.Switch.Namespace), linkNames(t, lab.Nodes[1].Namespace)}
	wire := netlab.Wire{Name: "apps", Bridge: "br-apps", Links: []string{"spare0"}}
	if err := lab.Connect(wire); err != nil {
		t.Fatal(err)
	}
	// The node's bridge and spare0 are two ends of one wire: each reaches the other node's.
	for i, name := range []string{"br-apps", "spare0"} {
		handle, err := lab.Nodes[i].Netlink()
		if err != nil {
			t.Fatal(err)
		}
		defer handle.Close()
		link, err := handle.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 61, 0, byte(i+1)), Mask: net.CIDRMask(24, 32)}}
		if err := handle.AddrAdd(link, own); err != nil {
			t.Fatal(err)
		}
	}
	addr := serve(t, lab.Nodes[1].Namespace, netip.MustParseAddr("10.61.0.2"), "hello")
	if got, err := ask(t.Context(), lab.Nodes[0].Namespace, addr.String()); err != nil || got != "hello" {
		t.Errorf("answer over the wire: %q, %v", got, err)
	}
	if err := lab.Disconnect(wire); err != nil {
		t.Fatal(err)
	}
	after := [2][]string{linkNames(t, lab.Switch.Namespace), linkNames(t, lab.Nodes[1].Namespace)}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("links after the wire (-before +after):\n%s", diff)
	}
}
