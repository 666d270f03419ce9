package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/netdev"
)

// bindingBridge is the kind of binding that this build plugs.
const bindingBridge = "bridge"

const (
	// brokenPods is how many different pods have to fail, with none that is
	// plugged among them, for a binding to be broken: Kuryr counted failures of
	// one pod, never took one back, and restarted for it again and again.
	brokenPods = 3
	// brokenFor is how long that has to go on.
	brokenFor = time.Minute
)

// bindings knows of each kind of binding whether it works.
type bindings struct {
	mu      sync.Mutex
	failing map[string]*failures
}

// failures are those of one kind since a pod was last plugged.
type failures struct {
	since time.Time
	pods  map[types.UID]struct{} // at most brokenPods of them
	last  error
}

// note takes in how plugging an interface of a pod went. What is wrong with one
// pod says nothing of the binding.
func (b *bindings) note(kind string, pod types.UID, err error) {
	for _, ofThePod := range []error{
		errInvalid, netdev.ErrInvalid, netdev.ErrExists, netdev.ErrNotNamespace, context.Canceled, context.DeadlineExceeded,
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
	if len(f.pods) < brokenPods {
		f.pods[pod] = struct{}{}
	}
	f.last = err
}

// check says why a binding does not work, or nil.
func (b *bindings) check(kind string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failing[kind]
	if f == nil || len(f.pods) < brokenPods || time.Since(f.since) < brokenFor {
		return nil
	}
	return fmt.Errorf("binding %s: no pod could be plugged for %s, the last because: %w", kind, time.Since(f.since).Round(time.Second), f.last)
}

// Bindings are the checks of the kinds of binding that the daemon plugs, by name.
// They fail when a restart may help.
func (d *Daemon) Bindings() map[string]func() error {
	if d.verbs == nil {
		return nil
	}
	return map[string]func() error{bindingBridge: func() error { return d.verbs.bindings.check(bindingBridge) }}
}
