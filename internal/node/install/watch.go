package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/run"
)

// quiet is the shortest time between two looks of Keep.
const quiet = time.Second

// Watcher reports changes in a directory.
type Watcher interface {
	// Renew watches the directory that is at the path now: an earlier one may have been
	// removed. After an error no change may be reported.
	Renew() error
	// Changes has an element after changes in the directory.
	Changes() <-chan struct{}
	// Close ends the watch.
	Close()
}

// Keep calls look at once, after each change that w reports, and each interval, until ctx
// ends. look reports whether it had to restore something. Another program that changes it
// again and again makes Keep slower: the time after a look is quiet, and doubles up to the
// interval with each look in a row that restores something, because runtimes pause all
// requests after every change.
func Keep(ctx context.Context, w Watcher, interval time.Duration, look func() (restored bool)) {
	defer w.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	pause, blind := quiet, false
	for {
		err := w.Renew() // before the look: no change is missed
		if err != nil && !blind {
			logr.FromContextOrDiscard(ctx).Error(err, "changes of the network configuration are seen late", "after", interval)
		}
		blind = err != nil
		if look() {
			pause = min(2*pause, interval)
		} else {
			pause = quiet
		}
		if !run.Sleep(ctx, pause) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.Changes():
		}
	}
}

// DirWatch watches a directory by inotify. It implements Watcher.
type DirWatch struct {
	dir     string
	changes chan struct{}
	watcher *fsnotify.Watcher // nil until Renew has made it
}

// NewDirWatch returns a watch of a directory, which begins with Renew.
func NewDirWatch(dir string) *DirWatch {
	return &DirWatch{dir: dir, changes: make(chan struct{}, 1)}
}

// Renew implements Watcher. It makes the directory if it is missing.
func (w *DirWatch) Renew() error {
	err := w.renew()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EMFILE):
		err = fmt.Errorf("%w: raise fs.inotify.max_user_instances, which all programs of the user share", err)
	case errors.Is(err, unix.ENOSPC):
		err = fmt.Errorf("%w: raise fs.inotify.max_user_watches, which all programs of the user share", err)
	}
	return fmt.Errorf("watch %s: %w", w.dir, err)
}

func (w *DirWatch) renew() error {
	if w.watcher == nil {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return err
		}
		w.watcher = watcher
		go w.forward(watcher)
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	return w.watcher.Add(w.dir)
}

// Changes implements Watcher.
func (w *DirWatch) Changes() <-chan struct{} { return w.changes }

// Close implements Watcher.
func (w *DirWatch) Close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}

// forward makes one element of all changes since the last was taken, until the watch ends.
// An error means that the kernel dropped events, so it is a change too.
func (w *DirWatch) forward(from *fsnotify.Watcher) {
	for {
		var open bool
		select {
		case _, open = <-from.Events:
		case _, open = <-from.Errors:
		}
		if !open {
			return
		}
		select {
		case w.changes <- struct{}{}:
		default:
		}
	}
}
