package install

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// TestMain moves the spools to a directory where tests may write.
func TestMain(m *testing.M) {
	cniproto.RunDir = os.TempDir()
	os.Exit(m.Run())
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "f")
	if replaced, err := replaceFile(path, []byte("one"), 0o755); err != nil || !replaced {
		t.Fatal(replaced, err)
	}
	first, err := os.Stat(path)
	if err != nil || first.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", first, err)
	}
	if replaced, err := replaceFile(path, []byte("one"), 0o755); err != nil || replaced {
		t.Fatal(replaced, err)
	}
	same, err := os.Stat(path)
	if err != nil || !os.SameFile(first, same) {
		t.Errorf("equal content was written again: %v", err)
	}
	if replaced, err := replaceFile(path, []byte("two"), 0o755); err != nil || !replaced {
		t.Fatal(replaced, err)
	}
	other, err := os.Stat(path)
	if err != nil || os.SameFile(first, other) {
		t.Errorf("a running program would be written over: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestConflist(t *testing.T) {
	raw, err := conflist("/run/fairlead/cni.sock")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion  string
		CNIVersions []string
		Name        string
		Plugins     []struct {
			Type, Socket string
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.CNIVersion != "1.0.0" || len(got.CNIVersions) != 3 || got.Name != "fairlead" || len(got.Plugins) != 1 ||
		got.Plugins[0].Type != "fairlead" || got.Plugins[0].Socket != "/run/fairlead/cni.sock" || len(got.Plugins[0].Capabilities) != 7 {
		t.Errorf("conflist %s", raw)
	}
}

func TestRemoveState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	l := ledger.New(filepath.Join(dir, ledger.RecordsDir), "boot-1", func(*ledger.Record) {})
	if _, err := l.Read(); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(&ledger.Record{ContainerID: "c1"}); err != nil {
		t.Fatal(err)
	}
	lock, err := TryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "cni.sock")
	if err := server.MakeSpool(filepath.Join(dir, cniproto.SpoolDir)); err != nil {
		t.Fatal(err)
	}
	if err := cniproto.SpoolDel(filepath.Join(dir, cniproto.SpoolDir), cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "c2"}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{socket, filepath.Join(dir, cniproto.HeartbeatFile)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := RemoveState(dir, socket)
	if err != nil || len(removed) != 6 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	if removed, err := RemoveState(dir, socket); err != nil || len(removed) != 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
}

// A second installation changes nothing in the directories that a runtime watches. After a
// change containerd pauses all requests to read them, and CRI-O runs every plugin.
func TestInstallAgainIsQuiet(t *testing.T) {
	source, bin, conf := filepath.Join(t.TempDir(), "fairlead-cni"), t.TempDir(), t.TempDir()
	if err := os.WriteFile(source, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		if err := Plugin(source, bin, []string{PluginName, "fairlead-ipam"}); err != nil {
			t.Fatal(err)
		}
		if _, err := Conflist(conf, cniproto.DefaultSocket()); err != nil {
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

	// ib-sriov-cni#220, kube-ovn#7035: incomplete files are replaced, and files that a
	// killed daemon left are removed.
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
	// containerd's CRI service dies if its directory is removed.
	if _, err := os.Stat(conf); err != nil {
		t.Error(err)
	}
}
