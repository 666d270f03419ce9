package node

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// tearDown removes everything that an ADD made for a sandbox, by the container ID and
// the interface of this ADD. A DEL of any other interface changes nothing: it may belong
// to an ADD which was refused because the sandbox had its interface already.
//
// tearDown returns as soon as the record of the deletion is written. The kernel takes
// some 30 ms to delete a link, and only the acknowledgement has to wait for it. The DEL of
// executed plugins and the return of devices come before the answer, because the runtime
// ends the namespace afterwards: the kernel deletes a device without hardware, such as a
// VLAN link, with its namespace. If they fail, the remover retries them.
func (sb *sandboxes) tearDown(ctx context.Context, r cniproto.Request) error {
	rec := sb.ledger.Get(r.ContainerID)
	var add *ledger.Add
	if rec != nil {
		add = rec.Plug()
	}
	if rec == nil && sb.ledger.IsLost() {
		sb.ledger.NoteEnd(sb.ended(&ledger.Record{ContainerID: r.ContainerID}, r.Netns))
	}
	switch {
	case rec != nil && rec.Damaged:
		defer sb.background.Enqueue(background.Reap, r.ContainerID)
		return errors.Join(sb.noteNamespace(rec, r.Netns), sb.removeDamaged(ctx, r))
	case add != nil && (add.State == ledger.Deleting || !add.IsOf(r.IfName)):
		return nil
	case add != nil:
		sb.locks.End(r.ContainerID)
		if err := sb.background.Release(ctx, rec, *add); err != nil || !add.Executes() && !add.Borrows() {
			return err
		}
		if err := sb.background.RemoveDeleting(ctx, r.ContainerID); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "unplugging failed, will be tried again", "pod", rec.Pod)
		}
		return nil
	case r.IfName == "":
		return nil
	}
	return sb.removeUnknown(ctx, r)
}

// removeUnknown removes the interface that a DEL names, whose record is not known.
func (sb *sandboxes) removeUnknown(ctx context.Context, r cniproto.Request) error {
	var at link.Place
	if ns, err := sb.namespaces.Open(r.Netns); err == nil {
		at = ns.Place()
		_ = ns.Close()
	}
	return sb.kinds.RemoveUnknown(ctx, at, r.ContainerID, r.IfName)
}

// noteNamespace enters the namespace that a DEL names into a damaged record (ended).
func (sb *sandboxes) noteNamespace(rec *ledger.Record, netns string) error {
	if now := sb.ended(rec, netns); now != rec {
		return sb.ledger.Put(now)
	}
	return nil
}

// ended returns a damaged record with the namespace that a DEL names, or that the DEL names none,
// because the runtime has ended it (CNI specification, DEL): its end is the evidence that nothing
// of the sandbox is left.
func (sb *sandboxes) ended(rec *ledger.Record, netns string) *ledger.Record {
	if netns == "" && rec.Netns == "" {
		return rec.With(func(r *ledger.Record) { r.Ended = true })
	}
	ns, err := sb.namespaces.Open(netns)
	if err != nil {
		return rec // it may be gone
	}
	defer func() { _ = ns.Close() }()
	return rec.With(func(r *ledger.Record) { r.Netns, r.NetnsID = netns, ns.Place().ID })
}

// removeDamaged removes the interfaces of a sandbox whose record is damaged: all that have
// links on the host, and that which the DEL names. The interface with the smallest index was
// made first and is the one of the ADD; a DEL of another one changes nothing. Further
// interfaces end with the namespace.
func (sb *sandboxes) removeDamaged(ctx context.Context, r cniproto.Request) error {
	found, err := sb.kinds.FoundOf(ctx, r.ContainerID)
	if err != nil {
		return err
	}
	switch n := slices.IndexFunc(found, func(f plug.Found) bool { return f.Name == r.IfName }); {
	case n > 0:
		return nil
	case n == 0 || r.IfName == "":
		sb.firewall.Remove(r.ContainerID)
		var errs []error
		for _, f := range slices.Backward(found) {
			errs = append(errs, sb.kinds.Remove(ctx, f.Made))
		}
		if err := errors.Join(errs...); err != nil || r.IfName == "" {
			return err
		}
	}
	return sb.removeUnknown(ctx, r)
}
