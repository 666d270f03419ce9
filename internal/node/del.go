package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
	"fairlead.dev/fairlead/internal/node/turns"
)

// TearDownPod removes everything that an ADD made for a sandbox, by the container ID and
// the interface of this ADD. A DEL of any other interface changes nothing: it may belong
// to an ADD which was refused because the sandbox had its interface already.
//
// TearDownPod returns as soon as the record of the deletion is written. The kernel takes
// some 30 ms to delete a link, and only the acknowledgement has to wait for it. The DEL of
// executed plugins and the return of devices come before the answer, because the runtime
// ends the namespace afterwards: the kernel deletes a device without hardware, such as a
// VLAN link, with its namespace. If they fail, the remover retries them.
func (pn *podNetwork) TearDownPod(ctx context.Context, r cniproto.Request) error {
	rec := pn.ledger.Get(r.ContainerID)
	var add *ledger.Add
	if rec != nil {
		add = rec.Plug()
	}
	switch {
	case rec != nil && rec.Damaged:
		defer pn.reaper.queue.Add(r.ContainerID)
		return errors.Join(pn.noteNamespace(rec, r.Netns), pn.removeDamaged(ctx, r))
	case add != nil && (add.State == ledger.Deleting || !add.IsOf(r.IfName)):
		return nil
	case add != nil:
		pn.turns.End(r.ContainerID)
		if err := pn.release(ctx, rec, *add); err != nil || !add.Executes() && !add.Borrows() {
			return err
		}
		if err := pn.remover.removeDeleting(ctx, r.ContainerID); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "unplugging failed, will be tried again", "pod", rec.Pod)
		}
		return nil
	case r.IfName == "":
		return nil
	}
	return pn.removeUnknown(ctx, r)
}

// removeUnknown removes the interface that a DEL names, whose record is not known.
func (pn *podNetwork) removeUnknown(ctx context.Context, r cniproto.Request) error {
	var at link.Place
	if ns, err := pn.kernel.Enter(r.Netns); err == nil {
		at = ns.Place()
		ns.Close()
	}
	return pn.kernel.RemoveUnknown(ctx, at, r.ContainerID, r.IfName)
}

// noteNamespace enters the namespace that a DEL names into a damaged record: its end is the
// evidence that nothing of the sandbox is left.
func (pn *podNetwork) noteNamespace(rec *ledger.Record, netns string) error {
	ns, err := pn.kernel.Enter(netns)
	if err != nil {
		return nil //nolint:nilerr // it may be gone, or not be named: the record stays as it is
	}
	defer ns.Close()
	return pn.ledger.Put(rec.With(func(r *ledger.Record) { r.Netns, r.NetnsID = netns, ns.Place().ID }))
}

// removeDamaged removes the interfaces of a sandbox whose record is damaged: all that have
// links on the host, and that which the DEL names. The interface with the smallest index was
// made first and is the one of the ADD; a DEL of another one changes nothing. Further
// interfaces end with the namespace.
func (pn *podNetwork) removeDamaged(ctx context.Context, r cniproto.Request) error {
	found, err := pn.foundOf(ctx, r.ContainerID)
	if err != nil {
		return err
	}
	switch n := slices.IndexFunc(found, func(f plug.Found) bool { return f.Name == r.IfName }); {
	case n > 0:
		return nil
	case n == 0 || r.IfName == "":
		pn.firewall.Remove(r.ContainerID)
		var errs []error
		for _, f := range slices.Backward(found) {
			errs = append(errs, pn.kernel.Remove(ctx, f.Made))
		}
		if err := errors.Join(errs...); err != nil || r.IfName == "" {
			return err
		}
	}
	return pn.removeUnknown(ctx, r)
}

// foundOf lists the interfaces of a sandbox that have links on the host, in the order in
// which they were made.
func (pn *podNetwork) foundOf(ctx context.Context, containerID string) ([]plug.Found, error) {
	found, err := pn.kernel.Found(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the links of sandbox %s: %w", containerID, err)
	}
	found = slices.DeleteFunc(found, func(f plug.Found) bool { return f.ContainerID != containerID })
	slices.SortFunc(found, func(a, b plug.Found) int { return cmp.Compare(a.Index, b.Index) })
	return found, nil
}

// release removes ADDs of a sandbox. The remover deletes the links in the background
// after the deletion is recorded; if it cannot be recorded, release deletes the links at
// once.
func (pn *podNetwork) release(ctx context.Context, rec *ledger.Record, adds ...ledger.Add) error {
	if !slices.ContainsFunc(adds, func(a ledger.Add) bool { return !a.AddressOnly() }) {
		return pn.remover.remove(ctx, rec.ContainerID, adds...)
	}
	pn.firewall.Remove(rec.ContainerID) // a successor may have its host ports at once
	if err := pn.ledger.Put(deleting(rec, adds)); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "record cannot be written, unplugging at once")
		return pn.remover.remove(ctx, rec.ContainerID, adds...)
	}
	pn.remover.enqueue(rec.ContainerID)
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

// removers is how many sandboxes are removed at once. A deletion waits some 30 ms for the
// kernel, and the waits overlap: 32 at once make 400 a second.
const removers = 32

// remover unplugs released sandboxes in the background, and retries until it is done.
type remover struct {
	kernel   Kernel
	ledger   *ledger.Ledger
	firewall *filter.Firewall
	turns    *turns.Turns // after Init
	queue    workqueue.TypedRateLimitingInterface[string]
	// executing has the sandboxes with executed plugins: plugins that hang until their
	// deadline delay no other sandboxes.
	executing workqueue.TypedRateLimitingInterface[string]
}

func newRemover(k Kernel, l *ledger.Ledger, f *filter.Firewall) *remover {
	return &remover{kernel: k, ledger: l, firewall: f, queue: queue.New[string]("remover"), executing: queue.New[string]("remover-plugins")}
}

// Run works until ctx ends.
func (r *remover) Run(ctx context.Context) error {
	handle := func(ctx context.Context, containerID string) error {
		err := r.turns.Do(ctx, containerID, func(ctx context.Context) error { return r.removeDeleting(ctx, containerID) })
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "unplugging failed, will be tried again", "sandbox", containerID)
		}
		return err
	}
	var both sync.WaitGroup
	both.Go(func() { queue.Run(ctx, r.queue, removers, handle) })
	both.Go(func() { queue.Run(ctx, r.executing, removers, handle) })
	both.Wait()
	return nil
}

// of returns the queue of a sandbox.
func (r *remover) of(containerID string) workqueue.TypedRateLimitingInterface[string] {
	if rec := r.ledger.Get(containerID); rec != nil && rec.Plug() != nil && rec.Plug().Executes() {
		return r.executing
	}
	return r.queue
}

// enqueue schedules the removal of the ADDs of a sandbox that are in the state Deleting.
func (r *remover) enqueue(containerID string) { r.of(containerID).Add(containerID) }

// removeLater schedules the removal of an ADD whose removal failed.
func (r *remover) removeLater(rec *ledger.Record, add ledger.Add) {
	rec = deleting(rec, []ledger.Add{add})
	if err := r.ledger.Put(rec); err != nil {
		// The file keeps the former state, from which a later daemon undoes the ADD too.
		r.ledger.Adopt(rec)
	}
	r.of(rec.ContainerID).AddRateLimited(rec.ContainerID)
}

func (r *remover) removeDeleting(ctx context.Context, containerID string) error {
	rec := r.ledger.Get(containerID)
	if rec == nil {
		return nil
	}
	if adds := rec.In(ledger.Deleting); len(adds) > 0 {
		return r.remove(ctx, containerID, adds...)
	}
	return nil
}

// remove unplugs the interfaces of ADDs of a sandbox, the last one first. It deletes
// these ADDs from the ledger when the kernel has no link of theirs, and no host port
// leads to them.
func (r *remover) remove(ctx context.Context, containerID string, adds ...ledger.Add) error {
	var errs []error
	for _, a := range adds {
		if a.AddressOnly() {
			continue // another plugin removes it
		}
		r.firewall.Remove(containerID)
		for _, i := range slices.Backward(a.Interfaces) {
			errs = append(errs, r.kernel.Remove(ctx, i.Made))
		}
		errs = append(errs, r.firewall.Closed(ctx, &a))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.ledger.Finish(containerID, adds...)
}
