package keyed

import (
	"context"
	"sync"
	"time"
)

// Batches do the work for a key together: items that arrive while a call of Work is under
// way share the next one (group commit). One call for a key is under way at a time, and keys
// do not wait for each other. Set the fields before the first use.
type Batches[K comparable, T any] struct {
	// Most is the number of items in one call; 0 stands for any number.
	Most int
	// Patience bounds the time of one call; 0 stands for no bound.
	Patience time.Duration
	// Work does the work for all items, in the order of their arrival, and returns the error
	// of each; nil if all are done. The context does not end with that of a caller of Do.
	Work func(ctx context.Context, key K, all []T) []error

	mu sync.Mutex
	// m has the items that wait. A key is in it while its work is under way.
	m map[K][]*waiting[T]
}

type waiting[T any] struct {
	item T
	done chan struct{}
	err  error
}

// Do does the work for the items, perhaps with those of others, and returns the error of
// each. It is the cause of the end of ctx if that comes first: the work may still be done.
func (b *Batches[K, T]) Do(ctx context.Context, key K, items ...T) []error {
	all := make([]*waiting[T], len(items))
	for n, item := range items {
		all[n] = &waiting[T]{item: item, done: make(chan struct{})}
	}
	b.mu.Lock()
	if b.m == nil {
		b.m = map[K][]*waiting[T]{}
	}
	before, busy := b.m[key]
	b.m[key] = append(before, all...)
	b.mu.Unlock()
	if !busy {
		go b.run(context.WithoutCancel(ctx), key)
	}
	errs := make([]error, len(all))
	for n, w := range all {
		select {
		case <-w.done:
			errs[n] = w.err
		case <-ctx.Done():
			errs[n] = context.Cause(ctx)
		}
	}
	return errs
}

// Busy reports whether work for the key is under way.
func (b *Batches[K, T]) Busy(key K) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, busy := b.m[key]
	return busy
}

// Len returns the number of keys for which work is under way.
func (b *Batches[K, T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.m)
}

// run works until nothing waits for the key.
func (b *Batches[K, T]) run(ctx context.Context, key K) {
	for some := b.next(key); len(some) > 0; some = b.next(key) {
		b.work(ctx, key, some)
	}
}

// next takes the items of the next call; none if nothing waits, and then the key is idle.
func (b *Batches[K, T]) next(key K) []*waiting[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.m[key]
	n := len(all)
	if b.Most > 0 {
		n = min(n, b.Most)
	}
	if n == 0 {
		delete(b.m, key)
		return nil
	}
	b.m[key] = all[n:]
	return all[:n]
}

func (b *Batches[K, T]) work(ctx context.Context, key K, some []*waiting[T]) {
	if b.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.Patience)
		defer cancel()
	}
	items := make([]T, len(some))
	for n, w := range some {
		items[n] = w.item
	}
	errs := b.Work(ctx, key, items)
	for n, w := range some {
		if errs != nil {
			w.err = errs[n]
		}
		close(w.done)
	}
}
