package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/fault"
)

const (
	// BrokenPods is how many different pods have to fail, with none that is
	// plugged among them, for a binding to be broken: Kuryr counted failures of
	// one pod, never took one back, and restarted for it again and again.
	BrokenPods = 3
	// BrokenFor is how long that has to go on.
	BrokenFor = time.Minute
)

// Bindings knows of each kind of binding whether it works.
type Bindings struct {
	mu      sync.Mutex
	failing map[string]*failures
}

// failures are those of one kind since a pod was last plugged.
type failures struct {
	since time.Time
	pods  map[types.UID]struct{} // at most brokenPods of them
	last  error
}

// Note takes in how plugging an interface of a pod went. What is wrong with one
// pod says nothing of the binding.
func (b *Bindings) Note(kind string, pod types.UID, err error) {
	for _, ofThePod := range []error{
		fault.ErrInvalid, link.ErrInvalid, link.ErrExists, link.ErrNotNamespace, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, ofThePod) {
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

// Check says why a binding does not work, or nil.
func (b *Bindings) Check(kind string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failing[kind]
	if f == nil || len(f.pods) < BrokenPods || time.Since(f.since) < BrokenFor {
		return nil
	}
	return fmt.Errorf("binding %s: no pod could be plugged for %s, the last because: %w", kind, time.Since(f.since).Round(time.Second), f.last)
}
