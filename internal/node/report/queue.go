package report

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// The delay before a failed item is tried again. It doubles from retryFirst to RetryLast.
const (
	retryFirst = 100 * time.Millisecond
	RetryLast  = 30 * time.Second
)

// NewQueue returns a work queue in which a failed item delays only itself. name is its name in
// metrics.
func NewQueue[T comparable](name string) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](retryFirst, RetryLast),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: name},
	)
}

// RunQueue calls handle for the items of a queue, for at most n items at once, until ctx ends. A
// failed item is queued again with a delay. Each item has a goroutine of its own: idle
// workers would keep the stacks that grew in the last burst.
func RunQueue[T comparable](ctx context.Context, q workqueue.TypedRateLimitingInterface[T], n int, handle func(context.Context, T) error) {
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	var doing errgroup.Group
	doing.SetLimit(n)
	for {
		item, shutdown := q.Get()
		if shutdown {
			break
		}
		doing.Go(func() error {
			defer q.Done(item)
			if err := handle(ctx, item); err != nil {
				q.AddRateLimited(item)
			} else {
				q.Forget(item)
			}
			return nil
		})
	}
	_ = doing.Wait() // never an error: failed items are queued again
}
