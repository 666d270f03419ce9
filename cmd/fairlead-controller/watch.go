package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/cache"
)

// client-go starts a failed watch again, with backoff. The program is unhealthy only if a
// watch has been failing for longer than watchDeadline.
const (
	watchDeadline = 3 * time.Minute
	// watchQuiet is the longest time between two errors of a watch that keeps failing. Up
	// to a minute of backoff lies between two tries. If the API server is cut off, a try
	// is two calls that each take until their timeout.
	watchQuiet = 4 * time.Minute
)

// watchHealth judges whether this process still receives changes. It gets no error from a
// watch that client-go tries again without reporting, as while the API server refuses
// connections. A new process would find the same.
type watchHealth struct {
	log logr.Logger

	mu      sync.Mutex
	watches map[*cache.Reflector]*failures
}

// failures of one watch, without progress and with less than watchQuiet between them.
type failures struct {
	first, last time.Time
	cause       error
	// version is the resource version that the watch has reached.
	version string
}

func newWatchHealth(log logr.Logger) *watchHealth {
	return &watchHealth{log: log, watches: map[*cache.Reflector]*failures{}}
}

// failed is client-go's handler of watch errors.
func (w *watchHealth) failed(_ context.Context, r *cache.Reflector, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, version := time.Now(), r.LastSyncResourceVersion()
	f := w.watches[r]
	if f == nil || f.version != version || now.Sub(f.last) > watchQuiet {
		f = &failures{first: now, version: version}
		w.watches[r] = f
	}
	f.last, f.cause = now, err
	w.log.Info("watch failed, starting it again", "resource", r.TypeDescription(), "err", err.Error())
}

// check fails while a watch has been failing for watchDeadline. A watch that has made
// progress since then works again.
func (w *watchHealth) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r, f := range w.watches {
		if time.Since(f.last) <= watchQuiet && f.last.Sub(f.first) >= watchDeadline && r.LastSyncResourceVersion() == f.version {
			return fmt.Errorf("the watch of %s has been failing since %s: %w", r.TypeDescription(), f.first.Format(time.RFC3339), f.cause)
		}
	}
	return nil
}
