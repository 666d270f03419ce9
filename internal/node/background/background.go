package background

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
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

// pluggers is how many hot plugs run at once.
const pluggers = 16

// SweepInterval is the time between sweeps. A sweep finds changes that are not announced to
// the daemon: a sandbox whose namespace went without a DEL, a link without a record.
const SweepInterval = time.Minute

// Config has what Background works with.
type Config struct {
	Kinds    *kinds.Table
	Registry *apiserver.Registry
	Ledger   *ledger.Ledger
	Firewall *filter.Firewall
	Statuses *report.Statuses
	Host     *hostnet.Network
	// Plugins executes GC of the networks of executed plugins; nil executes none.
	Plugins Plugins
	// Swept counts the sandboxes and links, by kind, that were removed without a DEL.
	Swept *prometheus.CounterVec
}

// Plugins executes CNI plugins.
type Plugins interface {
	// GC passes the attachments that are in use to the plugins of a network.
	GC(ctx context.Context, l v1alpha1.PluginList, valid []cnitypes.GCAttachment) error
}

// Sandboxes are the running sandboxes.
type Sandboxes interface {
	// HotPlug makes the interfaces of a running sandbox those of its PodAttachment.
	HotPlug(ctx context.Context, containerID string) error
}

// Background works on sandboxes beside the requests of the runtime. Work on one sandbox
// waits for the requests of this sandbox, and is tried again until it is done.
type Background struct {
	Config
	locks     *locks.Locks // after Adopt
	sandboxes Sandboxes    // after Adopt
	// collecting is true while a GC of executed plugins runs.
	collecting atomic.Bool

	soon  chan struct{} // a sweep is due
	queue workqueue.TypedRateLimitingInterface[task]
	// executing has the work that may execute plugins: plugins that hang until their
	// deadline delay no other sandboxes.
	executing workqueue.TypedRateLimitingInterface[task]
	// plugging has hot plugs, which may execute plugins too, and wait for the packet filter.
	plugging workqueue.TypedRateLimitingInterface[task]
}

// New returns a Background, which works while Run runs.
func New(c Config) *Background {
	return &Background{
		Config: c, soon: make(chan struct{}, 1), queue: report.NewQueue[task]("background"), executing: report.NewQueue[task]("background-plugins"), plugging: report.NewQueue[task]("background-hotplug"),
	}
}

// task is one piece of work on one sandbox.
type task struct {
	work        Work
	containerID string
}

// Work is a kind of work on a sandbox.
type Work int

const (
	// Remove unplugs the ADDs in the state Deleting.
	Remove Work = iota
	// Reap releases the ADDs of a sandbox that is gone without a DEL, so that the addresses
	// of a PodAttachment that is being deleted need not wait for the next sweep.
	Reap
	// Repair repairs the host's side after a CHECK or the sweep has found a difference. The
	// sweep looks for differences because runtimes need not send a CHECK, and containerd
	// does not.
	Repair
	// HotPlug makes the interfaces of a running sandbox those of its PodAttachment.
	HotPlug
)

// failures are the messages about work that has failed.
var failures = map[Work]string{
	Remove:  "unplugging failed, will be tried again",
	Reap:    "reaping a sandbox failed, will be tried again",
	Repair:  "cannot repair the host's side of a sandbox, will be tried again",
	HotPlug: "a running sandbox has not got the interfaces of its PodAttachment, will be tried again",
}

// Run works, and sweeps each SweepInterval, until ctx ends.
func (b *Background) Run(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() { report.RunQueue(ctx, b.queue, removers, b.do) })
	both.Go(func() { report.RunQueue(ctx, b.executing, removers, b.do) })
	both.Go(func() { report.RunQueue(ctx, b.plugging, pluggers, b.do) })
	both.Go(func() { b.findLostWhenSynced(ctx) })
	tick := time.NewTicker(SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			both.Wait()
			return nil
		case <-tick.C:
		case <-b.soon:
		}
		if err := b.Sweep(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "sweep was not complete, will be tried again")
		}
	}
}

// SweepSoon has Run sweep without a wait for the next interval.
func (b *Background) SweepSoon() {
	select {
	case b.soon <- struct{}{}:
	default: // one is due
	}
}

// do does one piece of work.
func (b *Background) do(ctx context.Context, t task) (err error) {
	switch t.work {
	case Remove:
		err = b.locks.Do(ctx, t.containerID, func(ctx context.Context) error { return b.RemoveDeleting(ctx, t.containerID) })
	case Reap:
		err = b.Reap(ctx, t.containerID)
	case Repair:
		err = b.repair(ctx, t.containerID)
	case HotPlug:
		err = b.sandboxes.HotPlug(ctx, t.containerID)
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
func (b *Background) of(t task) workqueue.TypedRateLimitingInterface[task] {
	rec := b.Ledger.Get(t.containerID)
	if t.work == HotPlug {
		return b.plugging
	}
	if t.work == Remove && rec != nil && rec.Plug() != nil && rec.Plug().Executes() {
		return b.executing
	}
	return b.queue
}

// Enqueue queues work on a sandbox. It does nothing if there is nothing to do.
func (b *Background) Enqueue(w Work, containerID string) {
	t := task{work: w, containerID: containerID}
	b.of(t).Add(t)
}

// Consider queues the sandboxes whose interfaces are not those of their changed
// PodAttachment, and reports whether there are any.
func (b *Background) Consider(pa *v1alpha1.PodAttachment) (queued bool) {
	if !apiserver.Ready(pa) {
		return false
	}
	for _, rec := range b.Ledger.Holding(pa.UID) {
		if rec.Behind(pa) {
			b.Enqueue(HotPlug, rec.ContainerID)
			queued = true
		}
	}
	return queued
}

// adoptHotPlug takes over a record of the previous daemon. The changes that failed are tried
// again when the PodAttachment is known.
func (b *Background) adoptHotPlug(rec *ledger.Record) {
	add := rec.Attached()
	if add == nil {
		return
	}
	if len(add.Failures) > 0 {
		retry := *add
		retry.Failures = nil
		b.Ledger.Adopt(rec.WithAdd(retry))
	}
	if len(add.Surplus(nil)) > 0 {
		b.Enqueue(HotPlug, rec.ContainerID)
	}
}

// Release removes ADDs of a sandbox. The remover deletes the links in the background
// after the deletion is recorded; if it cannot be recorded, release deletes the links at
// once.
func (b *Background) Release(ctx context.Context, rec *ledger.Record, adds ...ledger.Add) error {
	if !slices.ContainsFunc(adds, func(a ledger.Add) bool { return !a.AddressOnly() }) {
		return b.Remove(ctx, rec.ContainerID, adds...)
	}
	b.Firewall.Remove(rec.ContainerID) // a successor may have its host ports at once
	if err := b.Ledger.Put(deleting(rec, adds)); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "record cannot be written, unplugging at once")
		return b.Remove(ctx, rec.ContainerID, adds...)
	}
	b.Enqueue(Remove, rec.ContainerID)
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

// RemoveLater queues the removal of an ADD whose removal failed.
func (b *Background) RemoveLater(rec *ledger.Record, add ledger.Add) {
	rec = deleting(rec, []ledger.Add{add})
	if err := b.Ledger.Put(rec); err != nil {
		// The file keeps the former state, from which a later daemon undoes the ADD too.
		b.Ledger.Adopt(rec)
	}
	t := task{work: Remove, containerID: rec.ContainerID}
	b.of(t).AddRateLimited(t)
}

// RemoveDeleting removes the ADDs of a sandbox that are in the state Deleting.
func (b *Background) RemoveDeleting(ctx context.Context, containerID string) error {
	rec := b.Ledger.Get(containerID)
	if rec == nil {
		return nil
	}
	if adds := rec.In(ledger.Deleting); len(adds) > 0 {
		return b.Remove(ctx, containerID, adds...)
	}
	return nil
}

// Remove unplugs the interfaces of ADDs of a sandbox, the last one first. It deletes
// these ADDs from the ledger when the kernel has no link of theirs, and no host port
// leads to them.
func (b *Background) Remove(ctx context.Context, containerID string, adds ...ledger.Add) error {
	var errs []error
	for _, a := range adds {
		if a.AddressOnly() {
			continue // another plugin removes it
		}
		b.Firewall.Remove(containerID)
		for _, i := range slices.Backward(a.Interfaces) {
			errs = append(errs, b.Kinds.Remove(ctx, i.Made))
		}
		errs = append(errs, b.Firewall.Closed(ctx, &a))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.Ledger.Finish(containerID, adds...)
}
