package block

import (
	"context"
	"fmt"
	"sync"
)

// owners serializes what is done for one holder: a second take sees what the
// first one got, a take after a free does not see the old address. It is held
// until the outcome is known, longer than the caller may wait.
type owners struct {
	mu sync.Mutex
	m  map[holderKey]*owner
}

type owner struct {
	turn chan struct{}
	refs int
}

// lock waits for its turn. It fails with ErrUnavailable when ctx ends.
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
		return func() { <-w.turn; o.leave(k, w) }, nil
	case <-ctx.Done():
		o.leave(k, w)
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

func (o *owners) leave(k holderKey, w *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w.refs--; w.refs == 0 {
		delete(o.m, k)
	}
}
