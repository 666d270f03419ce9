// Package nested makes ports ready for pods on the port of a node's machine: as subports of
// its trunk, or as its allowed address pairs. Work for one port of a machine is done together,
// with one call, and one call for it is under way at a time.
package nested

import (
	"context"
	"errors"
	"sync"
	"time"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

const (
	// most is the number of ports in one call: a call for 50 subports takes some 15 seconds.
	most = 20
	// patience is the time that the calls for one batch may take.
	patience = 2 * time.Minute
	// tries is the number of attempts, if another changes the same thing at the same time.
	tries = 5
)

// batches collect work by key while earlier work for the key is under way.
type batches[T any] struct {
	// work does all or nothing.
	work func(ctx context.Context, key string, all []T) error

	mu sync.Mutex
	// m has the items that wait. A key is in it while its work is under way.
	m map[string][]*item[T]
}

type item[T any] struct {
	what T
	done chan struct{}
	err  error
}

// do does one piece of work, perhaps with others. If ctx ends, the work may still be done.
func (b *batches[T]) do(ctx context.Context, key string, what T) error {
	return b.doAll(ctx, key, []T{what})[0]
}

// doAll does pieces of work together, with one call for each group of most. It returns the
// error of each.
func (b *batches[T]) doAll(ctx context.Context, key string, all []T) []error {
	items := make([]*item[T], len(all))
	for n, what := range all {
		items[n] = &item[T]{what: what, done: make(chan struct{})}
	}
	b.mu.Lock()
	if b.m == nil {
		b.m = map[string][]*item[T]{}
	}
	waiting, busy := b.m[key]
	b.m[key] = append(waiting, items...)
	b.mu.Unlock()
	if !busy {
		go b.run(context.WithoutCancel(ctx), key)
	}
	errs := make([]error, len(items))
	for n, i := range items {
		select {
		case <-i.done:
			errs[n] = i.err
		case <-ctx.Done():
			errs[n] = context.Cause(ctx)
		}
	}
	return errs
}

// run works until nothing waits for the key.
func (b *batches[T]) run(ctx context.Context, key string) {
	for {
		b.mu.Lock()
		waiting := b.m[key]
		some := waiting[:min(len(waiting), most)]
		b.m[key] = waiting[len(some):]
		if len(some) == 0 {
			delete(b.m, key)
		}
		b.mu.Unlock()
		if len(some) == 0 {
			return
		}
		b.finish(ctx, key, some)
	}
}

// finish does the work of some items. If the cloud refuses it, each item is done alone:
// a poison item stops no other.
func (b *batches[T]) finish(ctx context.Context, key string, some []*item[T]) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all []T
	for _, i := range some {
		all = append(all, i.what)
	}
	err := b.work(ctx, key, all)
	alone := err != nil && len(some) > 1 && !errors.Is(err, cloud.ErrUnavailable)
	for n, i := range some {
		i.err = err
		if alone {
			i.err = b.work(ctx, key, all[n:n+1])
		}
		close(i.done)
	}
}
