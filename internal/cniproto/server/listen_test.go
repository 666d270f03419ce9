package server

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
)

func TestListen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "cni.sock")
	for range 2 { // the second one replaces the socket of the first
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]fs.FileMode{dir: fs.ModeDir | 0o700, path: fs.ModeSocket | 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s has mode %v, %v: want %v", path, info.Mode(), err, want)
			}
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("directory holds %v, %v: want the socket", entries, err)
	}
}

// Listen replaces the temporary socket of a daemon that was killed during its start.
func TestListenAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestListenFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "taken"), filepath.Join("/proc", "none", "s"), filepath.Join(dir, strings.Repeat("s", 120))} {
		if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one that names %s", err, path)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("directory holds %v, %v: want what was there", entries, err)
	}
}

// Servers take over from each other while requests arrive. Each request is served at the
// first attempt.
func TestUpgrade(t *testing.T) {
	const upgrades, clients, each = 8, 8, 60
	var served atomic.Int64
	h := handlerFunc(func(context.Context, cniproto.Request) ([]byte, error) {
		served.Add(1)
		return []byte("ok"), nil
	})
	socket := filepath.Join(t.TempDir(), "cni.sock")
	current := startAt(t, socket, h, nil)

	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				id := strconv.Itoa(c) + "-" + strconv.Itoa(i)
				if body, err := (running{socket: socket}).do(add(id)); err != nil || string(body) != "ok" {
					t.Errorf("%s: answer %q, %v", id, body, err)
				}
			}
		})
	}
	for range upgrades {
		next := startAt(t, socket, h, nil)
		current.stop()
		if err := <-current.ended; err != nil {
			t.Errorf("stopped with %v", err)
		}
		current = next
	}
	wg.Wait()
	if n := served.Load(); n != clients*each {
		t.Errorf("%d requests served, want %d", n, clients*each)
	}
}
