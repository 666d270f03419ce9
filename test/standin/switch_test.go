package standin

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/ovslab"
	"fairlead.dev/fairlead/test/plugtest"
)

const port = "3f1c2d4e-0000-4000-8000-00000000000a"

// board has the calls of Switch.Plugged.
type board struct {
	mu    sync.Mutex
	calls []string
}

func (b *board) plugged(port string, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, fmt.Sprint(port, " ", is))
}

// newSwitch serves a Switch at a socket until the test ends.
func newSwitch(tb testing.TB) (socket string, calls *board) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "ovs") //nolint:usetesting // that of a test is too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", filepath.Join(dir, "db.sock"))
	if err != nil {
		tb.Fatal(err)
	}
	calls = &board{}
	done := make(chan struct{})
	go func() { defer close(done); _ = (&Switch{Plugged: calls.plugged}).Serve(listener) }()
	tb.Cleanup(func() { _, _, _ = listener.Close(), <-done, os.RemoveAll(dir) })
	return listener.Addr().String(), calls
}

// A node plugs ports into the stand-in as into Open vSwitch.
func TestNodePlugsIntoSwitch(t *testing.T) {
	nettest.NeedRoot(t)
	var socket string // of the running test
	plugtest.Run(t, plugtest.Case{
		Interface: plug.Interface{
			ContainerID: "c1", Name: "eth0", MTU: 1400, MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 1},
			Addresses: []netip.Prefix{nettest.Prefix("10.7.0.5/24")},
			Binding:   v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: port}},
		},
		HostLink: true,
		Host:     func(tb testing.TB, _ *link.Sockets) { tb.Helper(); socket, _ = newSwitch(tb) },
		New:      func(s *link.Sockets) plug.Kind { return plug.OVS(s, socket, ovslab.NewShutter(s)) },
	})
}

// The rows are those of the last transaction that was executed, and each change is a call of Plugged.
func TestTransactions(t *testing.T) {
	socket, calls := newSwitch(t)
	client := ovsdb.New(socket)
	id := func(port string) any { return ovsdb.Map(map[string]string{"iface-id": port}) }
	add := func(name, port string) []ovsdb.Operation {
		return []ovsdb.Operation{
			ovsdb.Insert("Interface", "interface", map[string]any{"name": name, "external_ids": id(port)}),
			ovsdb.Insert("Port", "port", map[string]any{"name": name, "interfaces": ovsdb.Named("interface")}),
			ovsdb.Mutate("Bridge", "ports", "insert", ovsdb.Named("port"), ovsdb.Is("name", bridge)),
		}
	}
	steps := []struct {
		name    string
		ops     []ovsdb.Operation
		refused bool
		ports   []string // of the bridge
	}{
		{"a port", add("a", "p1"), false, []string{"p1"}},
		{"another", add("b", "p2"), false, []string{"p1", "p2"}},
		{"a third, unless one that is there is absent", append(add("c", "p3"), ovsdb.Unless("Interface", "name", nil, ovsdb.Includes("external_ids", id("p2")))), true, []string{"p1", "p2"}},
		{"an unknown table", append(add("c", "p3"), ovsdb.Select("Mirror", []string{"name"})), true, []string{"p1", "p2"}},
		{"an unknown condition", []ovsdb.Operation{ovsdb.Select("Interface", []string{"name"}, ovsdb.Is("type", "tap"))}, true, []string{"p1", "p2"}},
		{"another bridge", []ovsdb.Operation{ovsdb.Mutate("Bridge", "ports", "delete", ovsdb.Set(), ovsdb.Is("name", "br-ex"))}, false, []string{"p1", "p2"}},
	}
	look := func() (ports, ids []string) {
		t.Helper()
		results, err := client.Transact(t.Context(), ovsdb.Select("Bridge", []string{"ports"}), ovsdb.Select("Interface", []string{"external_ids"}))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range results[1].Rows {
			ports = append(ports, i["external_ids"].Pairs["iface-id"])
		}
		return ports, results[0].Rows[0]["ports"].Elements
	}
	for _, s := range steps {
		_, err := client.Transact(t.Context(), s.ops...)
		if (err != nil) != s.refused {
			t.Errorf("%s: error %v; want one: %t", s.name, err, s.refused)
		}
		if ports, _ := look(); !slices.Equal(ports, s.ports) {
			t.Errorf("%s: ports %v; want %v", s.name, ports, s.ports)
		}
	}
	_, ids := look()
	if _, err := client.Transact(t.Context(), ovsdb.Mutate("Bridge", "ports", "delete", ovsdb.Set(ovsdb.UUID(ids[0])))); err != nil {
		t.Fatal(err)
	}
	calls.mu.Lock()
	defer calls.mu.Unlock()
	if diff := cmp.Diff([]string{"p1 true", "p2 true", "p1 false"}, calls.calls); diff != "" {
		t.Errorf("calls of Plugged (-want +got):\n%s", diff)
	}
}
