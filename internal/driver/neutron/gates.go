package neutron

import (
	"context"
	"fmt"
	"sync"

	"fairlead.dev/fairlead/internal/driver"
)

// Bounds of the calls for one network of a project, and of all releases. A call beyond both
// fails at once, so that a network on which calls hang occupies no more of the controller's
// workers.
const (
	// atOnce is the number of calls under way: more are slower together.
	atOnce = 8
	// inQueue is the number of calls that wait for these.
	inQueue = 64
)

// gates bound the calls under way by key.
type gates struct {
	mu sync.Mutex
	m  map[string]*gate
}

type gate struct {
	slots chan struct{}
	// inside is the number of calls under way and in the queue.
	inside int
}

// enter waits for a place and returns the function that leaves it. At most atOnce callers
// have a place, and at most queue callers wait. Errors: driver.ErrUnavailable.
func (g *gates) enter(ctx context.Context, key string, atOnce, queue int) (leave func(), err error) {
	g.mu.Lock()
	if g.m == nil {
		g.m = map[string]*gate{}
	}
	of := g.m[key]
	if of == nil {
		of = &gate{slots: make(chan struct{}, atOnce)}
		g.m[key] = of
	}
	if of.inside >= atOnce+queue {
		g.mu.Unlock()
		return nil, fmt.Errorf("%w: %d calls for %s wait for Neutron already", driver.ErrUnavailable, of.inside, key)
	}
	of.inside++
	g.mu.Unlock()
	out := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if of.inside--; of.inside == 0 {
			delete(g.m, key)
		}
	}
	select {
	case of.slots <- struct{}{}:
		return func() { <-of.slots; out() }, nil
	case <-ctx.Done():
		out()
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
}
