package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// wantSpooled checks the containers whose DELs are in the spool.
func (w *testNode) wantSpooled(want ...string) {
	w.t.Helper()
	left, err := server.ReadSpool(filepath.Join(w.dir, cniproto.SpoolDir))
	if err != nil || len(left) != len(want) {
		w.t.Fatalf("in the spool: %v, %v; want %q", left, err, want)
	}
	for i, s := range left {
		if s.Request.ContainerID != want[i] {
			w.t.Errorf("in the spool: %v; want %q", left, want)
		}
	}
}

// A spooled DEL that fails stops neither the daemon from serving nor the later DELs (I8:
// one object's error stops no other).
func TestSpooledDelThatFailsStopsNothing(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		w.mustAdd("c2", "p", "u1")
		w.stop()
		w.spool("c1") // unknown to the daemon
		w.spool("c2")
		w.kernel.setHook(func(_ context.Context, step, what string) error {
			if step == "detach" && what == plug.RoutedName("c1", "eth0") {
				return errors.New("device or resource busy")
			}
			return nil
		})
		w.start()
		settle()
		w.wantLinks()
		w.wantSpooled("c1")
		w.pass(2 * background.SweepInterval)
		w.wantSpooled("c1")
		w.kernel.setHook(nil)
		w.pass(background.SweepInterval)
		w.wantSpooled()
	})
}

// The file system of the records is full: a DEL works without it. The DEL of a pod with
// host ports waits for the packet filter, which does not run before the socket is open;
// the wait is bounded.
func TestSpooledDelsWithAFullFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	onTestNode(t, func(w *testNode) {
		const ports = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}`
		w.stop()
		dir := filepath.Join(w.dir, ledger.RecordsDir)
		if err := syscall.Mount("fairlead-test", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}()
		w.start()
		settle()
		w.pod("web", "u1")
		if _, err := w.addAsking("c1", "web", "u1", ports); err != nil {
			t.Fatal(err)
		}
		settle()
		w.stop()
		if err := os.WriteFile(filepath.Join(dir, "c3"+ledger.RecordSuffix), []byte("torn"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 64<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the file system is not full: %v", err)
		}
		w.kernel.change(func(links map[string]fakeLink) { // the link of the torn record
			links[plug.RoutedName("c3", "eth0")] = fakeLink{containerID: "c3", ifName: "eth0"}
		})
		w.spool("c1")
		w.start()
		w.wantSpooled("c1")
		w.wantLinks("c3/eth0")
		w.pass(2 * background.SweepInterval)
		w.wantSpooled()
		w.filter.want(t, "ports")
		w.mustDel("c3")
		settle()
		w.wantLinks()
		w.stop()
		if err := os.Remove(filepath.Join(dir, "full")); err != nil {
			t.Fatal(err)
		}
	})
}
