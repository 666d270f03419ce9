// Package keyed serializes, bounds and batches work by a key: a sandbox, a holder of an
// address, a port of a machine.
package keyed

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"
)

// ErrFull means that as many callers wait for a key as may wait.
var ErrFull = errors.New("too many wait already")

// Gates bound the operations under way by key. Callers enter in the order of their arrival,
// and a wait ends with its context. A key that nobody uses takes no memory. The zero value is
// ready.
type Gates[K comparable] struct {
	mu sync.Mutex
	m  map[K]*gate
}

type gate struct {
	places *semaphore.Weighted
	// inside is the number of callers that have a place or wait for one.
	inside int
}

// Lock waits until no other caller holds the key, and returns the function that lets the
// next one in. Errors: the cause of the end of ctx.
func (g *Gates[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	return g.Enter(ctx, key, 1, -1)
}

// Enter waits for one of atOnce places of the key, and returns the function that gives it
// back. Callers of one key name the same atOnce. At most queue callers wait, any number if
// queue is negative. Errors: ErrFull at once if as many wait, the cause of the end of ctx.
func (g *Gates[K]) Enter(ctx context.Context, key K, atOnce, queue int) (leave func(), err error) {
	of, err := g.join(key, atOnce, queue)
	if err != nil {
		return nil, err
	}
	if err := of.places.Acquire(ctx, 1); err != nil {
		g.part(key, of)
		return nil, context.Cause(ctx)
	}
	return func() {
		of.places.Release(1)
		g.part(key, of)
	}, nil
}

// join counts a caller before it waits, so that the gate is not replaced by a new one
// during the wait.
func (g *Gates[K]) join(key K, atOnce, queue int) (*gate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.m[key]
	if of == nil {
		of = &gate{places: semaphore.NewWeighted(int64(atOnce))}
	}
	if queue >= 0 && of.inside >= atOnce+queue {
		return nil, fmt.Errorf("%w: %d for %v", ErrFull, of.inside, key)
	}
	of.inside++
	if g.m == nil {
		g.m = map[K]*gate{}
	}
	g.m[key] = of
	return of, nil
}

// part removes a caller from a gate, and the gate with its last caller.
func (g *Gates[K]) part(key K, of *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if of.inside--; of.inside == 0 {
		delete(g.m, key)
	}
}

// Len returns the number of keys that somebody holds or waits for.
func (g *Gates[K]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.m)
}
