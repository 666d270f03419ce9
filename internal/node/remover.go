package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

const (
	// removers is how many sandboxes go at once. A deletion waits some 30 ms for
	// the kernel, and the waits overlap: 32 at once make 400 a second.
	removers = 32

	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
)

// remover unplugs the sandboxes that were let go, in the background, for ever
// until it is done.
type remover struct {
	kernel   Kernel
	ledger   *ledger
	firewall *firewall
	queue    workqueue.TypedRateLimitingInterface[string]
}

func newRemover(k Kernel, l *ledger, f *firewall) *remover {
	return &remover{kernel: k, ledger: l, firewall: f, queue: newQueue[string]("remover")}
}

// newQueue makes a work queue whose items delay only themselves.
func newQueue[T comparable](name string) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](retryFirst, retryLast),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: name},
	)
}

// work runs handle for the items of a queue, at most n at once, until ctx ends; an
// item that fails comes again later. A goroutine lives no longer than its item: those
// that idle keep the stacks that the last burst made them grow.
func work[T comparable](ctx context.Context, q workqueue.TypedRateLimitingInterface[T], n int, handle func(context.Context, T) error) {
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

// Run works until ctx ends.
func (r *remover) Run(ctx context.Context) error {
	work(ctx, r.queue, removers, func(ctx context.Context, containerID string) error {
		rec := r.ledger.get(containerID)
		if rec == nil || rec.State != deleting {
			return nil
		}
		err := r.remove(ctx, rec)
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "unplugging failed, will be tried again", "sandbox", containerID, "pod", rec.Pod)
		}
		return err
	})
	return nil
}

// enqueue has a sandbox removed whose record says that it is being deleted.
func (r *remover) enqueue(containerID string) { r.queue.Add(containerID) }

// later has a sandbox removed whose removal failed.
func (r *remover) later(rec *record) {
	rec = rec.with(func(r *record) { r.State = deleting })
	if err := r.ledger.put(rec); err != nil {
		// The file keeps its state: a daemon that starts undoes an ADD too.
		r.ledger.adopt(rec)
	}
	r.queue.AddRateLimited(rec.ContainerID)
}

// remove unplugs a sandbox, the last interface first, and forgets it when the
// kernel says that every link is gone, and no host port leads to it.
func (r *remover) remove(ctx context.Context, rec *record) error {
	r.firewall.remove(rec)
	var errs []error
	names := rec.hostNames()
	slices.Reverse(names)
	for _, name := range names {
		errs = append(errs, r.kernel.Detach(ctx, name))
	}
	errs = append(errs, r.firewall.closed(ctx, rec))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.ledger.remove(rec)
}
