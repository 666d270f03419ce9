package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/cniproto"
)

// Installed again, nothing happens in the directories that a runtime watches:
// containerd stops everything for a while to read them, CRI-O runs every plugin.
func TestInstallAgainIsQuiet(t *testing.T) {
	source, bin, conf := filepath.Join(t.TempDir(), "fairlead-cni"), t.TempDir(), t.TempDir()
	if err := os.WriteFile(source, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		if err := installPlugin(source, bin, []string{PluginName, "fairlead-ipam"}); err != nil {
			t.Fatal(err)
		}
		if err := installConflist(conf, cniproto.DefaultSocket()); err != nil {
			t.Fatal(err)
		}
	}
	install()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	const changes = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE | unix.IN_DELETE
	for _, dir := range []string{bin, conf} {
		if _, err := unix.InotifyAddWatch(watch, dir, changes); err != nil {
			t.Fatal(err)
		}
	}
	install()
	if n, err := unix.Read(watch, make([]byte, 4096)); err != unix.EAGAIN {
		t.Errorf("%d bytes of events, %v: want none", n, err)
	}

	// ib-sriov-cni#220, kube-ovn#7035: what is half there is replaced, and what a
	// daemon left that was killed goes.
	left := filepath.Join(conf, ".fairlead-123")
	then := time.Now().Add(-2 * tempAge)
	for _, err := range []error{
		os.WriteFile(left, []byte("{"), 0o600), os.Chtimes(left, then, then),
		os.WriteFile(filepath.Join(conf, ConflistName), []byte("{"), 0o600), os.Chmod(filepath.Join(bin, PluginName), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	install()
	want, err := conflist(cniproto.DefaultSocket())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(conf, ConflistName)); err != nil || string(got) != string(want) {
		t.Errorf("conflist %s, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(bin, PluginName)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("plugin %v, %v", info, err)
	}
	entries, err := os.ReadDir(conf)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}

	removed, err := Uninstall(bin, conf, []string{PluginName, "fairlead-ipam"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(conf, ConflistName), filepath.Join(bin, PluginName), filepath.Join(bin, "fairlead-ipam")}, removed); diff != "" {
		t.Error(diff)
	}
	if removed, err := Uninstall(bin, conf, []string{PluginName, "fairlead-ipam"}); err != nil || len(removed) > 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
	// Without its directory containerd's CRI service dies.
	if _, err := os.Stat(conf); err != nil {
		t.Error(err)
	}
}
