package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
	"fairlead.dev/fairlead/internal/node/report"
)

// removers is how many sandboxes are worked on at once. A deletion waits some 30 ms for the
// kernel, and the waits overlap: 32 at once make 400 a second.
const removers = 32

// followers is how many sandboxes follow changes at once.
const followers = 16

// background works on sandboxes beside the requests of the runtime. Work on one sandbox
// waits for the requests of this sandbox, and is tried again until it is done.
type background struct {
	kinds     *kinds.Table
	registry  *apiserver.Registry
	ledger    *ledger.Ledger
	locks     *locks.Locks // after Init
	firewall  *filter.Firewall
	statuses  *report.Statuses
	host      *hostnet.Network
	metrics   *metrics
	sandboxes *sandboxes
	// plugins executes GC of the networks of executed plugins; nil executes none.
	plugins Plugins
	// collecting is true while a GC of these networks runs.
	collecting atomic.Bool

	queue workqueue.TypedRateLimitingInterface[task]
	// executing has the work that may execute plugins: plugins that hang until their
	// deadline delay no other sandboxes.
	executing workqueue.TypedRateLimitingInterface[task]
	// following has hot plugs, which may execute plugins too, and wait for the packet filter.
	following workqueue.TypedRateLimitingInterface[task]
}

// task is one piece of work on one sandbox.
type task struct {
	work        work
	containerID string
}

// work is what is to be done.
type work int

const (
	// remove unplugs the ADDs in the state Deleting.
	remove work = iota
	// reap releases the ADDs of a sandbox that is gone without a DEL, so that the addresses
	// of a PodAttachment that is being deleted need not wait for the next sweep.
	reap
	// repair repairs the host's side after a CHECK or the sweep has found a difference. The
	// sweep looks for differences because runtimes need not send a CHECK, and containerd
	// does not.
	repair
	// hotPlug makes the interfaces of a running sandbox those of its PodAttachment.
	hotPlug
)

// failures are the messages about work that has failed.
var failures = map[work]string{
	remove:  "unplugging failed, will be tried again",
	reap:    "reaping a sandbox failed, will be tried again",
	repair:  "cannot repair the host's side of a sandbox, will be tried again",
	hotPlug: "a running sandbox cannot follow its PodAttachment, will be tried again",
}

// Run works, and sweeps each sweepInterval, until ctx ends.
func (b *background) Run(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() { report.RunQueue(ctx, b.queue, removers, b.do) })
	both.Go(func() { report.RunQueue(ctx, b.executing, removers, b.do) })
	both.Go(func() { report.RunQueue(ctx, b.following, followers, b.do) })
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			both.Wait()
			return nil
		case <-tick.C:
		}
		if err := b.sweep(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "sweep was not complete, will be tried again")
		}
	}
}

// do does one piece of work.
func (b *background) do(ctx context.Context, t task) (err error) {
	switch t.work {
	case remove:
		err = b.locks.Do(ctx, t.containerID, func(ctx context.Context) error { return b.removeDeleting(ctx, t.containerID) })
	case reap:
		err = b.reap(ctx, t.containerID)
	case repair:
		err = b.repair(ctx, t.containerID)
	case hotPlug:
		err = b.sandboxes.follow(ctx, t.containerID)
		if errors.Is(err, locks.ErrDeleted) {
			return nil // the DEL removes every interface
		}
	}
	if err != nil && ctx.Err() == nil {
		logr.FromContextOrDiscard(ctx).Error(err, failures[t.work], "sandbox", t.containerID)
	}
	return err
}

// of returns the queue of a piece of work.
func (b *background) of(t task) workqueue.TypedRateLimitingInterface[task] {
	rec := b.ledger.Get(t.containerID)
	if t.work == hotPlug {
		return b.following
	}
	if t.work == remove && rec != nil && rec.Plug() != nil && rec.Plug().Executes() {
		return b.executing
	}
	return b.queue
}

// enqueue queues work on a sandbox. It does nothing if there is nothing to do.
func (b *background) enqueue(w work, containerID string) {
	t := task{work: w, containerID: containerID}
	b.of(t).Add(t)
}

// consider queues the sandboxes whose interfaces have to follow a change of their
// PodAttachment, and reports whether there are any.
func (b *background) consider(pa *v1alpha1.PodAttachment) (queued bool) {
	if !ready(pa) {
		return false
	}
	for _, rec := range b.ledger.Holding(pa.UID) {
		if rec.Behind(pa) {
			b.enqueue(hotPlug, rec.ContainerID)
			queued = true
		}
	}
	return queued
}

// adoptHotPlug takes over a record of the previous daemon. The changes that failed are tried
// again when the PodAttachment is known.
func (b *background) adoptHotPlug(rec *ledger.Record) {
	add := rec.Plugged()
	if add == nil {
		return
	}
	if len(add.Failures) > 0 {
		retry := *add
		retry.Failures = nil
		b.ledger.Adopt(rec.WithAdd(retry))
	}
	if len(add.Surplus(nil)) > 0 {
		b.enqueue(hotPlug, rec.ContainerID)
	}
}

// release removes ADDs of a sandbox. The remover deletes the links in the background
// after the deletion is recorded; if it cannot be recorded, release deletes the links at
// once.
func (b *background) release(ctx context.Context, rec *ledger.Record, adds ...ledger.Add) error {
	if !slices.ContainsFunc(adds, func(a ledger.Add) bool { return !a.AddressOnly() }) {
		return b.remove(ctx, rec.ContainerID, adds...)
	}
	b.firewall.Remove(rec.ContainerID) // a successor may have its host ports at once
	if err := b.ledger.Put(deleting(rec, adds)); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "record cannot be written, unplugging at once")
		return b.remove(ctx, rec.ContainerID, adds...)
	}
	b.enqueue(remove, rec.ContainerID)
	return nil
}

// deleting returns the record with some ADDs in the state Deleting.
func deleting(rec *ledger.Record, adds []ledger.Add) *ledger.Record {
	for _, a := range adds {
		a.State = ledger.Deleting
		rec = rec.WithAdd(a)
	}
	return rec
}

// removeLater queues the removal of an ADD whose removal failed.
func (b *background) removeLater(rec *ledger.Record, add ledger.Add) {
	rec = deleting(rec, []ledger.Add{add})
	if err := b.ledger.Put(rec); err != nil {
		// The file keeps the former state, from which a later daemon undoes the ADD too.
		b.ledger.Adopt(rec)
	}
	t := task{work: remove, containerID: rec.ContainerID}
	b.of(t).AddRateLimited(t)
}

// removeDeleting removes the ADDs of a sandbox that are in the state Deleting.
func (b *background) removeDeleting(ctx context.Context, containerID string) error {
	rec := b.ledger.Get(containerID)
	if rec == nil {
		return nil
	}
	if adds := rec.In(ledger.Deleting); len(adds) > 0 {
		return b.remove(ctx, containerID, adds...)
	}
	return nil
}

// remove unplugs the interfaces of ADDs of a sandbox, the last one first. It deletes
// these ADDs from the ledger when the kernel has no link of theirs, and no host port
// leads to them.
func (b *background) remove(ctx context.Context, containerID string, adds ...ledger.Add) error {
	var errs []error
	for _, a := range adds {
		if a.AddressOnly() {
			continue // another plugin removes it
		}
		b.firewall.Remove(containerID)
		for _, i := range slices.Backward(a.Interfaces) {
			errs = append(errs, b.kinds.Remove(ctx, i.Made))
		}
		errs = append(errs, b.firewall.Closed(ctx, &a))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.ledger.Finish(containerID, adds...)
}

// foundOf lists the interfaces of a sandbox that have links on the host, in the order in
// which they were made.
func foundOf(ctx context.Context, k *kinds.Table, containerID string) ([]plug.Found, error) {
	found, err := k.Found(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the links of sandbox %s: %w", containerID, err)
	}
	found = slices.DeleteFunc(found, func(f plug.Found) bool { return f.ContainerID != containerID })
	slices.SortFunc(found, func(a, b plug.Found) int { return cmp.Compare(a.Index, b.Index) })
	return found, nil
}
