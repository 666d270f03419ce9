package link_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/nettest"
)

func TestPlace(t *testing.T) {
	ns := nettest.NewNamespace(t)
	raw, err := json.Marshal(ns.Place())
	if err != nil {
		t.Fatal(err)
	}
	var p link.Place
	if err := json.Unmarshal(raw, &p); err != nil || p != ns.Place() {
		t.Fatalf("%s is read as %+v, %v", raw, p, err)
	}
	opened, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	_ = opened.Close()
	is := func(when string, p link.Place, gone bool) {
		t.Helper()
		ns, err := p.Open()
		if err == nil {
			_ = ns.Close()
			t.Errorf("%s: it can be opened", when)
		} else if !errors.Is(err, link.ErrNotNamespace) {
			t.Errorf("%s: %v, want ErrNotNamespace", when, err)
		}
		if p.Gone() != gone {
			t.Errorf("%s: gone is %t, want %t (%v)", when, !gone, gone, err)
		}
	}
	if p.Gone() {
		t.Error("it is there, and said to be gone")
	}
	is("no place", link.Place{}, false)
	is("no directory", link.Place{Path: filepath.Join(p.Path, "none", "ns"), ID: p.ID}, false)

	other := nettest.NewNamespace(t)
	is("another namespace in its place", link.Place{Path: other.Path(), ID: p.ID}, true)

	// The mount may exist without reaching this program.
	nettest.DropPath(t, p.Path)
	is("a file in its place", p, false)
	if err := os.Remove(p.Path); err != nil {
		t.Fatal(err)
	}
	is("nothing there", p, true)
	if err := unix.Mkfifo(p.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	is("a pipe in its place", p, false)
}
