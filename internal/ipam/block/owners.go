package block

import (
	"context"
	"fmt"
	"sync"
)

// owners serializes the operations of each holder: a second take sees the result of the
// first, and a take after a free does not see the old address. The lock is held until
// the outcome is known, which may be longer than the caller waits.
type owners struct {
	mu sync.Mutex
	m  map[holderKey]*owner
}

type owner struct {
	turn chan struct{}
	refs int
}

// lock waits for the lock of a key. It fails with ErrUnavailable if ctx ends first.
func (o *owners) lock(ctx context.Context, k holderKey) (unlock func(), err error) {
	o.mu.Lock()
	w := o.m[k]
	if w == nil {
		w = &owner{turn: make(chan struct{}, 1)}
		o.m[k] = w
	}
	w.refs++
	o.mu.Unlock()
	select {
	case w.turn <- struct{}{}:
		return func() { <-w.turn; o.release(k, w) }, nil
	case <-ctx.Done():
		o.release(k, w)
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

func (o *owners) release(k holderKey, w *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w.refs--; w.refs == 0 {
		delete(o.m, k)
	}
}
