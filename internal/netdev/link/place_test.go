package link_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
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

// A namespace whose path is gone can be opened while a process is in it, by its device and
// inode alone.
func TestPlaceIsHeld(t *testing.T) {
	ns := nettest.NewNamespace(t)
	process := exec.Command("sleep", "600")
	if err := ns.Do(process.Start); err != nil {
		t.Fatal(err)
	}
	end := func() { _, _ = process.Process.Kill(), process.Wait() }
	defer end()
	p := ns.Place()
	nettest.DropPath(t, p.Path)
	if err := os.Remove(p.Path); err != nil {
		t.Fatal(err)
	}
	held, err := p.OpenHeld()
	if err != nil {
		t.Fatal(err)
	}
	if held.ID() != p.ID {
		t.Errorf("opened %+v, want %+v", held.ID(), p.ID)
	}
	_ = held.Close()
	for _, other := range []link.Place{{}, {Path: p.Path}, {Path: p.Path, ID: link.NamespaceID{Device: p.ID.Device, Inode: p.ID.Inode + 1}}} {
		if ns, err := other.OpenHeld(); !errors.Is(err, link.ErrNotNamespace) {
			t.Errorf("%+v: opened %v, %v", other, ns, err)
		}
	}
	end()
	if ns, err := p.OpenHeld(); !errors.Is(err, link.ErrNotNamespace) {
		t.Errorf("after the process: opened %v, %v", ns, err)
	}
}

// A namespace has ended when its path is gone or leads to another one. Doubt is no
// evidence.
func TestEnded(t *testing.T) {
	s, ns, other := nettest.NewNode(t), nettest.NewNamespace(t), nettest.NewNamespace(t)
	nettest.Steps(t, s, link.AssignID(ns.FD()), link.AssignID(other.FD()))
	id, err := s.NamespaceID(ns)
	if err != nil || id < 0 {
		t.Fatalf("ID %d, %v", id, err)
	}
	for _, tt := range []struct {
		name, path string
		want       bool
	}{
		{"it is there", ns.Path(), false},
		{"another in its place", other.Path(), true},
		{"nothing there", filepath.Join(filepath.Dir(ns.Path()), "none"), true},
		{"no directory", filepath.Join(ns.Path(), "none", "ns"), false},
		{"a plain file", filepath.Join("/etc", "passwd"), false},
		{"no path", "", false},
		{"a relative path", "none", false},
	} {
		if got := s.Ended(tt.path, id); got != tt.want {
			t.Errorf("%s: ended is %t, want %t", tt.name, got, tt.want)
		}
	}
}
