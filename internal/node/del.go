package node

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
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
	if rec != nil && rec.Incomplete && (add == nil || add.IsOf(r.IfName)) {
		if err := pn.removeUnrecorded(ctx, rec, r.Netns); err != nil {
			return err // nothing else retries it
		}
		rec = pn.ledger.Get(r.ContainerID)
	}
	switch {
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
	var at link.Place
	if ns, err := pn.kernel.Enter(r.Netns); err == nil {
		at = ns.Place()
		ns.Close()
	}
	if rec != nil && rec.Incomplete {
		defer pn.reaper.queue.Add(r.ContainerID)
	}
	return pn.kernel.RemoveUnknown(ctx, at, r.ContainerID, r.IfName)
}

// removeUnrecorded executes the DEL of plugins of a sandbox whose record was damaged. They
// are those of the PodAttachment that names the sandbox.
func (pn *podNetwork) removeUnrecorded(ctx context.Context, rec *ledger.Record, netns string) error {
	var errs []error
	for _, key := range pn.registry.Keys() {
		pa := pn.registry.Get(key)
		if pa == nil || pa.Status.Sandbox == nil || pa.Status.Sandbox.ID != rec.ContainerID {
			continue
		}
		for _, i := range pa.Spec.Interfaces {
			list := i.Chain
			if i.Binding.Delegate != nil {
				list = i.Binding.Delegate
			}
			if list == nil || slices.Contains(rec.Deleted, i.Name) {
				continue
			}
			m := plug.Made{Kind: plug.KindDelegate, ContainerID: rec.ContainerID, Name: i.Name, Plugins: &plug.Plugins{List: *list, Args: answer.Args(pa, rec.ContainerID)}}
			if ns, err := pn.kernel.Enter(netns); err == nil {
				m.Namespace = ns.Place()
				ns.Close()
			}
			err := pn.kernel.Remove(ctx, m)
			if err == nil && i.Binding.Delegate != nil {
				err = pn.ledger.NoteDeleted(pn.ledger.Get(rec.ContainerID), i.Name)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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
