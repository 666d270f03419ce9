package queue

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// How long an item that failed rests between tries, doubling from first to last.
const (
	retryFirst = 100 * time.Millisecond
	RetryLast  = 30 * time.Second
)

// New makes a work queue whose items delay only themselves.
func New[T comparable](name string) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](retryFirst, RetryLast),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: name},
	)
}

// Run runs handle for the items of a queue, at most n at once, until ctx ends; an
// item that fails comes again later. A goroutine lives no longer than its item: those
// that idle keep the stacks that the last burst made them grow.
func Run[T comparable](ctx context.Context, q workqueue.TypedRateLimitingInterface[T], n int, handle func(context.Context, T) error) {
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
	_ = doing.Wait() // what failed is queued again
}
