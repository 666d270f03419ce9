package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/cache"
)

// A watch that fails is started again by client-go, with backoff. Only one that
// has been failing for longer than watchDeadline makes the program unhealthy.
const (
	watchDeadline = 3 * time.Minute
	// watchQuiet is for how long a watch that works no more can be silent. Up to
	// a minute of backoff lies between two tries, and to an API server that is
	// cut off a try is two calls, of which each takes until its timeout.
	watchQuiet = 4 * time.Minute
)

// watchHealth judges whether this process still hears of changes. What client-go
// goes on trying without a word, as while the API server refuses connections, it
// does not hear of: a new process would find the same.
type watchHealth struct {
	log logr.Logger

	mu      sync.Mutex
	watches map[*cache.Reflector]*failures
}

// failures of one watch, with nothing heard and less than watchQuiet between
// them.
type failures struct {
	first, last time.Time
	cause       error
	// version of the resource that the watch has got to.
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

// check fails while a watch has been failing past the deadline. One that has got
// on since then works again.
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
