package node

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
)

// TearDownPod lets a sandbox go, by its container ID and the interface of its ADD,
// with all that this ADD made. A DEL of any other interface changes nothing: it may
// be that of an ADD which was refused because the sandbox had its interface already.
//
// It answers as soon as it is written down that the links have to go: deleting one
// waits some 30 ms in the kernel, and nobody but the acknowledgement has to wait for
// that.
func (pn *podNetwork) TearDownPod(ctx context.Context, r cniproto.Request) error {
	rec := pn.ledger.Get(r.ContainerID)
	switch {
	case rec != nil && (rec.State == ledger.Deleting || !rec.IsOf(r.IfName)):
		return nil
	case rec != nil:
		pn.turns.End(r.ContainerID)
		return pn.release(ctx, rec)
	case r.IfName == "":
		return nil
	}
	// Nothing is known of it; what a lost record left behind has this name.
	return pn.kernel.Detach(ctx, netdev.HostName(r.ContainerID, r.IfName))
}

// release writes down that a sandbox has to go, and lets it go. Where that
// cannot be written it goes at once.
func (pn *podNetwork) release(ctx context.Context, rec *ledger.Record) error {
	dying := rec.With(func(r *ledger.Record) { r.State = ledger.Deleting })
	pn.firewall.Remove(rec) // a successor may have its host ports at once
	if err := pn.ledger.Put(dying); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "record cannot be written, unplugging at once")
		return pn.remover.remove(ctx, rec)
	}
	pn.remover.enqueue(rec.ContainerID)
	return nil
}

// removers is how many sandboxes go at once. A deletion waits some 30 ms for
// the kernel, and the waits overlap: 32 at once make 400 a second.
const removers = 32

// remover unplugs the sandboxes that were let go, in the background, for ever
// until it is done.
type remover struct {
	kernel   Kernel
	ledger   *ledger.Ledger
	firewall *filter.Firewall
	queue    workqueue.TypedRateLimitingInterface[string]
}

func newRemover(k Kernel, l *ledger.Ledger, f *filter.Firewall) *remover {
	return &remover{kernel: k, ledger: l, firewall: f, queue: queue.New[string]("remover")}
}

// Run works until ctx ends.
func (r *remover) Run(ctx context.Context) error {
	queue.Run(ctx, r.queue, removers, func(ctx context.Context, containerID string) error {
		rec := r.ledger.Get(containerID)
		if rec == nil || rec.State != ledger.Deleting {
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
func (r *remover) later(rec *ledger.Record) {
	rec = rec.With(func(r *ledger.Record) { r.State = ledger.Deleting })
	if err := r.ledger.Put(rec); err != nil {
		// The file keeps its state: a daemon that starts undoes an ADD too.
		r.ledger.Adopt(rec)
	}
	r.queue.AddRateLimited(rec.ContainerID)
}

// remove unplugs a sandbox, the last interface first, and forgets it when the
// kernel says that every link is gone, and no host port leads to it.
func (r *remover) remove(ctx context.Context, rec *ledger.Record) error {
	r.firewall.Remove(rec)
	var errs []error
	names := rec.HostNames()
	slices.Reverse(names)
	for _, name := range names {
		errs = append(errs, r.kernel.Detach(ctx, name))
	}
	errs = append(errs, r.firewall.Closed(ctx, rec))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.ledger.Remove(rec)
}
