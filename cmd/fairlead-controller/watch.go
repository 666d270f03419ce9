package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/cache"
)

// A watch that fails is started again by client-go, with backoff up to half a
// minute. Only one that has been failing for longer than watchDeadline without
// a quiet spell makes the program unhealthy.
const (
	watchDeadline = 3 * time.Minute
	watchQuiet    = time.Minute
)

// watchHealth judges whether this process still hears of changes.
type watchHealth struct {
	log logr.Logger
	now func() time.Time

	mu          sync.Mutex
	first, last time.Time
	cause       error
}

func newWatchHealth(log logr.Logger) *watchHealth {
	return &watchHealth{log: log, now: time.Now}
}

// failed is client-go's handler of watch errors.
func (w *watchHealth) failed(_ context.Context, r *cache.Reflector, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if now.Sub(w.last) > watchQuiet {
		w.first = now
	}
	w.last, w.cause = now, err
	w.log.Info("watch failed, starting it again", "resource", r.TypeDescription(), "err", err.Error())
}

// check fails while watches have been failing past the deadline.
func (w *watchHealth) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now().Sub(w.last) > watchQuiet || w.last.Sub(w.first) < watchDeadline {
		return nil
	}
	return errors.Join(fmt.Errorf("a watch has been failing since %s", w.first.Format(time.RFC3339)), w.cause)
}
