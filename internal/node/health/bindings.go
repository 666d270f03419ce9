package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

const (
	// BrokenPods is the number of different pods that must fail, without a success among
	// them, for a binding to count as broken. Kuryr counted the failures of one pod, never
	// reset the count, and restarted again and again.
	BrokenPods = 3
	// BrokenFor is the time since the first of these failures that must have passed.
	BrokenFor = time.Minute
)

// Bindings detects kinds of binding that are broken. The zero value is ready for use.
type Bindings struct {
	mu      sync.Mutex
	failing map[string]*failures
}

// failures are the failures of one kind since its last success.
type failures struct {
	since time.Time
	pods  map[types.UID]struct{} // at most BrokenPods
	last  error
}

// Note counts an attempt to plug an interface of a pod, with its error, nil for success.
// It ignores errors that the pod itself causes, those of executed plugins and those of Open
// vSwitch: a restart of the daemon does not help them.
func (b *Bindings) Note(kind string, pod types.UID, err error) {
	for _, podError := range []error{
		fault.ErrInvalid, link.ErrInvalid, link.ErrExists, link.ErrNoParent, link.ErrNotNamespace, ovsdb.ErrUnavailable, ovsdb.ErrRefused, context.Canceled, context.DeadlineExceeded, fault.ErrPlugin,
	} {
		if errors.Is(err, podError) {
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.failing, kind)
		return
	}
	f := b.failing[kind]
	if f == nil {
		f = &failures{since: time.Now(), pods: map[types.UID]struct{}{}}
		if b.failing == nil {
			b.failing = map[string]*failures{}
		}
		b.failing[kind] = f
	}
	if len(f.pods) < BrokenPods {
		f.pods[pod] = struct{}{}
	}
	f.last = err
}

// Check returns an error, with the last failure, if a kind of binding is broken.
func (b *Bindings) Check(kind string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failing[kind]
	if f == nil || len(f.pods) < BrokenPods || time.Since(f.since) < BrokenFor {
		return nil
	}
	return fmt.Errorf("binding %s: no pod could be plugged for %s, the last because: %w", kind, time.Since(f.since).Round(time.Second), f.last)
}
