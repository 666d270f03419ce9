package plug

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// TestHolding looks for addresses among namespaces in the form in which a runtime keeps
// them.
func TestHolding(t *testing.T) {
	nettest.NeedIPv6(t)
	ns := nettest.NewNamespace(t)
	h := nettest.OpenHandle(t, ns)
	for _, cidr := range []string{"10.99.0.5/24", "fd00:99::5/64"} {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			t.Fatal(err)
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := h.AddrAdd(nettest.LinkNamed(t, ns, "lo"), addr); err != nil {
			t.Fatal(err)
		}
	}
	dir, path := filepath.Dir(ns.Path()), ns.Path()
	for _, tt := range []struct {
		addrs []string
		want  string
	}{
		{[]string{"10.99.0.5"}, path},
		{[]string{"10.99.0.6", "fd00:99::5"}, path},
		{[]string{"10.99.0.6", "fd00:99::6"}, ""},
		{nil, ""},
	} {
		var addrs []netip.Addr
		for _, a := range tt.addrs {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		if got, err := (Namespaces{dir}).Holding(t.Context(), addrs); err != nil || got != tt.want {
			t.Errorf("%v: %q, %v, want %q", tt.addrs, got, err, tt.want)
		}
	}

	// A file that may hide a namespace is an error.
	hidden := filepath.Join(dir, "hidden")
	if err := os.WriteFile(hidden, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	none := []netip.Addr{netip.MustParseAddr("10.99.0.6")}
	if _, err := (Namespaces{dir}).Holding(t.Context(), none); !errors.Is(err, link.ErrNotNamespace) {
		t.Errorf("with a file that is no namespace: %v", err)
	}
	if _, err := (Namespaces{filepath.Join(dir, "none")}).Holding(t.Context(), none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the directory: %v", err)
	}
}
