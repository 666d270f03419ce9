package native

import (
	"context"
	"fmt"
	"sync"

	"fairlead.dev/fairlead/internal/fault"
)

// quotas limits the takes under way of a namespace at a pool to the room that the quota
// leaves.
type quotas struct {
	mu sync.Mutex
	m  map[tenant]*gate
}

// tenant is a namespace that draws from a pool.
type tenant struct{ pool, namespace string }

// gate counts the takes of a tenant that are under way.
type gate struct {
	underWay int
	// left is closed when a take has ended.
	left chan struct{}
}

// enter waits until a take is sure to stay within the limit. The caller calls leave when
// the outcome of the take is known. used counts the addresses of the tenant, without those
// that are held for the claim of this take. Between its write and leave, a take counts
// twice: this only makes the next take wait.
//
// Errors: fault.ErrExhausted if the limit is reached, fault.ErrUnavailable if ctx ends.
func (q *quotas) enter(ctx context.Context, t tenant, limit int, used func() int) (leave func(), err error) {
	for {
		q.mu.Lock()
		g := q.m[t]
		if g == nil {
			g = &gate{left: make(chan struct{})}
		}
		n := used()
		if n+g.underWay < limit {
			g.underWay++
			q.m[t] = g
			q.mu.Unlock()
			return func() { q.leave(t, g) }, nil
		}
		left, idle := g.left, g.underWay == 0
		q.mu.Unlock()
		if idle {
			return nil, fmt.Errorf("%w: namespace %s has %d addresses of it, including those held for its claims, and spec.quota.perNamespace allows %d",
				fault.ErrExhausted, t.namespace, n, limit)
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: waiting for other pods of namespace %s at its quota: %w", fault.ErrUnavailable, t.namespace, ctx.Err())
		}
	}
}

func (q *quotas) leave(t tenant, g *gate) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(g.left)
	g.left = make(chan struct{})
	if g.underWay--; g.underWay == 0 {
		delete(q.m, t)
	}
}
