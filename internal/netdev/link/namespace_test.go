package link_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func TestOpenNamespaceRefuses(t *testing.T) {
	dir := t.TempDir()
	file, fifo, socket := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tests := []struct {
		name, path, says string
		missing          bool
	}{
		{name: "empty", path: "", says: "the path is empty", missing: true},
		{name: "nothing", path: filepath.Join(dir, "none"), says: "nothing is there", missing: true},
		{name: "below a file", path: filepath.Join(file, "ns"), says: "nothing is there", missing: true},
		{name: "directory", path: dir, says: "it is a directory"},
		// This file is an unmounted namespace, or a mount that the daemon does not see.
		// Runtimes report it as "unknown FS magic 1021994".
		{name: "regular file", path: file, says: "mountPropagation HostToContainer"},
		{name: "pipe without a writer", path: fifo, says: "it is a pipe"},
		{name: "socket", path: socket, says: "it is a socket"},
		{name: "device", path: "/dev/null", says: "it is a device"},
		{name: "mount namespace", path: "/proc/self/ns/mnt", says: "a namespace of another kind"},
		{name: "our own", path: "/proc/self/ns/net", says: "of this program itself"},
		{name: "too long", path: "/" + strings.Repeat("x", 5000), says: "file name too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ns, err := link.OpenNamespace(tt.path)
			if err == nil {
				_ = ns.Close()
				t.Fatal("no error")
			}
			if !errors.Is(err, link.ErrNotNamespace) || errors.Is(err, fs.ErrNotExist) != tt.missing {
				t.Errorf("%v: ErrNotNamespace %t, ErrNotExist %t, want true and %t", err,
					errors.Is(err, link.ErrNotNamespace), errors.Is(err, fs.ErrNotExist), tt.missing)
			}
			if !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), `"`+tt.path+`"`) {
				t.Errorf("%v: must name the path and say %q", err, tt.says)
			}
			nettest.Fits(t, err)
		})
	}
}

func TestNamespaceID(t *testing.T) {
	a, b := nettest.NewNamespace(t), nettest.NewNamespace(t)
	again, err := link.OpenNamespace(a.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if a.ID() != again.ID() || a.ID() == b.ID() || a.ID().Inode == 0 {
		t.Errorf("IDs %v, the same again %v, another %v", a.ID(), again.ID(), b.ID())
	}
}

// No thread stays in a namespace that it entered for Do.
func TestThreadsComeHome(t *testing.T) {
	home, err := statID(nettest.OwnNamespace)
	if err != nil {
		t.Fatal(err)
	}
	ns := nettest.NewNamespace(t)
	for range 50 {
		nettest.In(t, ns, func() error {
			id, err := statID(nettest.OwnNamespace)
			if id != ns.ID() {
				t.Errorf("inside: %v, want %v", id, ns.ID())
			}
			return err
		})
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads: %v, %v", threads, err)
	}
	for _, thread := range threads {
		if id, err := statID(thread); err == nil && id != home {
			t.Errorf("%s is %v, want %v", thread, id, home)
		}
	}
}

func statID(path string) (link.NamespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return link.NamespaceID{}, err
	}
	return link.NamespaceID{Device: st.Dev, Inode: st.Ino}, nil
}
