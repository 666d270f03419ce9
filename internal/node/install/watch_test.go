package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/cniproto"
)

func TestDirWatch(t *testing.T) {
	write := func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }
	for _, tt := range []struct {
		name   string
		change func(dir, ours string) error
	}{
		{"removed", func(_, ours string) error { return os.Remove(ours) }},
		{"renamed", func(_, ours string) error { return os.Rename(ours, ours+".cilium_bak") }},
		{"moved away", func(dir, ours string) error { return os.Rename(ours, dir+".moved") }},
		{"overwritten", func(_, ours string) error { return write(ours) }},
		{"replaced", func(dir, ours string) error {
			other := filepath.Join(filepath.Dir(dir), "other")
			return errors.Join(write(other), os.Rename(other, ours))
		}},
		{"another mode", func(_, ours string) error { return os.Chmod(ours, 0o644) }},
		{"another configuration", func(dir, _ string) error { return write(filepath.Join(dir, "05-other.conflist")) }},
		{"directory removed", func(dir, _ string) error { return os.RemoveAll(dir) }},
		{"directory moved", func(dir, _ string) error { return os.Rename(dir, dir+".moved") }},
		{"directory replaced", func(dir, ours string) error {
			return errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o755), write(ours))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "net.d")
			if _, err := Conflist(dir, cniproto.DefaultSocket()); err != nil {
				t.Fatal(err)
			}
			w := NewDirWatch(dir)
			defer w.Close()
			if err := w.Renew(); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(dir, filepath.Join(dir, ConflistName)); err != nil {
				t.Fatal(err)
			}
			<-w.Changes()
		})
	}
}

// The kernel allows no further watch until another program has ended its own.
func TestDirWatchAtTheLimit(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "etc", "net.d")
	w := NewDirWatch(dir)
	defer w.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	err := w.Renew()
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "max_user_instances") {
		t.Errorf("at the limit: %v", err)
	}
	if err := errors.Join(w.Renew(), os.WriteFile(filepath.Join(dir, ConflistName), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	<-w.Changes()
}

// TestKeepRestores has no clock of its own: the kernel's events are not part of a bubble.
func TestKeepRestores(t *testing.T) {
	for name, damage := range map[string]func(dir, ours string) error{
		"removed":            func(_, ours string) error { return os.Remove(ours) },
		"overwritten":        func(_, ours string) error { return os.WriteFile(ours, []byte("{"), 0o600) },
		"directory removed":  func(dir, _ string) error { return os.RemoveAll(dir) },
		"directory replaced": func(dir, _ string) error { return errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "net.d")
			ours := filepath.Join(dir, ConflistName)
			written := make(chan bool)
			ctx, cancel := context.WithCancel(t.Context())
			var keeping sync.WaitGroup
			keeping.Go(func() {
				Keep(ctx, NewDirWatch(dir), time.Hour, func() bool {
					_, w := Announce(ctx, dir, cniproto.DefaultSocket())
					select {
					case written <- w:
					case <-ctx.Done():
					}
					return w
				})
			})
			wantRestored := func(after string) {
				t.Helper()
				for !<-written { // a look because of an earlier change
				}
				if raw, err := os.ReadFile(ours); err != nil || !LeadsHere(raw) {
					t.Errorf("after %s: %s, %v", after, raw, err)
				}
			}
			wantRestored("the start")
			if <-written { // because of the first write
				t.Error("the second look wrote it again")
			}
			if err := damage(dir, ours); err != nil {
				t.Fatal(err)
			}
			wantRestored(name)
			if err := os.Remove(ours); err != nil { // the directory may be another
				t.Fatal(err)
			}
			wantRestored("another removal")
			cancel()
			keeping.Wait()
		})
	}
}

// fakeWatch is a watch whose changes the test makes.
type fakeWatch struct {
	changes chan struct{}
	closed  bool

	mu  sync.Mutex
	err error
}

func (w *fakeWatch) Changes() <-chan struct{} { return w.changes }
func (w *fakeWatch) Close()                   { w.closed = true }

func (w *fakeWatch) Renew() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// fails has the next calls of Renew return err.
func (w *fakeWatch) fails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *fakeWatch) change() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}

// keeper runs Keep in a bubble, and has the times of the looks since the last call of took.
type keeper struct {
	watch fakeWatch
	log   []string

	mu     sync.Mutex
	looks  []time.Duration
	fought bool
}

// fights has another program change each restored file at once, or no longer.
func (k *keeper) fights(fights bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fought = fights
}

func onKeeper(t *testing.T, test func(*keeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{watch: fakeWatch{changes: make(chan struct{}, 1)}}
		log := funcr.New(func(_, args string) { k.log = append(k.log, args) }, funcr.Options{})
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), log))
		start := time.Now()
		go Keep(ctx, &k.watch, time.Minute, func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.looks = append(k.looks, time.Since(start))
			if k.fought {
				k.watch.change()
			}
			return k.fought
		})
		test(k)
		cancel()
		synctest.Wait()
		if !k.watch.closed {
			t.Error("the watch was not closed")
		}
	})
}

// wantLooks lets time pass, and compares the times of the looks in it.
func (k *keeper) wantLooks(t *testing.T, d time.Duration, want ...time.Duration) {
	t.Helper()
	<-time.After(d)
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if diff := cmp.Diff(want, k.looks); diff != "" {
		t.Errorf("looks (-want +got):\n%s", diff)
	}
	k.looks = nil
}

func TestKeepLooksAfterChanges(t *testing.T) {
	const s = time.Second
	onKeeper(t, func(k *keeper) {
		k.wantLooks(t, 10*s, 0)
		k.watch.change()
		k.wantLooks(t, 0, 10*s) // at once
		k.watch.change()
		k.watch.change()
		k.wantLooks(t, 9*s, 11*s)
		k.wantLooks(t, 60*s, 60*s) // by the timer
	})
}

// Another program removes the file after each restoration.
func TestKeepFightsSlowly(t *testing.T) {
	const s = time.Second
	onKeeper(t, func(k *keeper) {
		k.wantLooks(t, 10*s, 0)
		k.fights(true)
		k.watch.change()
		k.wantLooks(t, 70*s, 10*s, 12*s, 16*s, 24*s, 40*s, 72*s)
		k.wantLooks(t, 170*s, 132*s, 192*s)
		k.fights(false)
		k.wantLooks(t, 20*s, 252*s, 253*s) // the change, and the tick meanwhile
		k.watch.change()
		k.wantLooks(t, 0, 270*s) // at once again
	})
}

func TestKeepWithoutAWatch(t *testing.T) {
	const s = time.Second
	onKeeper(t, func(k *keeper) {
		k.watch.fails(errors.New("too many open files"))
		k.wantLooks(t, 150*s, 0, 60*s, 120*s)
		if len(k.log) != 1 || !strings.Contains(k.log[0], "too many open files") {
			t.Errorf("logged %q, want the error once", k.log)
		}
		k.watch.fails(nil)
		k.wantLooks(t, 60*s, 180*s)
		k.watch.fails(errors.New("no space left on device"))
		k.wantLooks(t, 120*s, 240*s, 300*s)
		if len(k.log) != 2 {
			t.Errorf("logged %q, want the second failure once too", k.log)
		}
	})
}
