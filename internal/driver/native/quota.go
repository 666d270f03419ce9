package native

import (
	"context"
	"fmt"
	"sync"

	"fairlead.dev/fairlead/internal/driver"
)

// quotas lets no more takes of a namespace at a pool under way than the quota
// leaves room for.
type quotas struct {
	mu sync.Mutex
	m  map[tenant]*gate
}

// tenant is a namespace as a user of a pool.
type tenant struct{ pool, namespace string }

// gate counts what is under way for a tenant.
type gate struct {
	underWay int
	// left is closed when one has ended.
	left chan struct{}
}

// enter waits until a take is sure to stay within the limit; leave is called
// when its outcome is known. used counts what the tenant has, without what
// this take finds kept for it. What is taken but
// not left yet counts twice, for which the next one waits.
//
// It fails with driver.ErrExhausted when the limit is reached, and with
// driver.ErrUnavailable when ctx ends.
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
			return nil, fmt.Errorf("%w: namespace %s has %d addresses of it, with those that its claims keep, and spec.quota.perNamespace allows %d",
				driver.ErrExhausted, t.namespace, n, limit)
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: waiting for other pods of namespace %s at its quota: %w", driver.ErrUnavailable, t.namespace, ctx.Err())
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
