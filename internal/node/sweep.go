package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
)

// adopt takes over the state of the previous daemon, without the API server: the records,
// and from the kernel the contents of damaged and lost records. Nothing is served and
// nothing acknowledged until it returns.
func (pn *podNetwork) adopt(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	lost, err := pn.ledger.Lost()
	if err != nil {
		return err
	}
	bad, err := pn.ledger.Read()
	if err != nil {
		return err
	}
	found, err := pn.kernel.Found(ctx)
	if err != nil {
		return fmt.Errorf("look for links of earlier sandboxes: %w", err)
	}
	for _, b := range bad {
		log.Error(b.Err, "record was damaged and set aside", "sandbox", b.ContainerID)
		pn.rebuild(ctx, b.ContainerID, found)
	}
	for _, f := range found {
		if lost && f.ContainerID != "" && pn.ledger.Get(f.ContainerID) == nil {
			log.Info("the directory of records was removed while a sandbox lived", "sandbox", f.ContainerID)
			pn.rebuild(ctx, f.ContainerID, found)
		}
	}
	pn.undoAttaching(ctx)
	for _, rec := range pn.ledger.All() {
		pn.remover.enqueue(rec.ContainerID) // does nothing if no ADD is being deleted
		pn.follower.adopt(rec)
		if add := rec.Plugged(); add != nil {
			pn.firewall.Add(rec.ContainerID, add)
		}
	}
	pn.undoUnanswered(ctx, found)
	pn.health.Begin()
	if err := pn.sweep(ctx); err != nil {
		log.Error(err, "sweep was not complete, will be tried again")
	}
	return nil
}

// undoAttaching removes, by their records, the ADDs that were killed before they
// answered.
func (pn *podNetwork) undoAttaching(ctx context.Context) {
	for _, rec := range pn.ledger.All() {
		if adds := rec.In(ledger.Attaching); len(adds) > 0 {
			logr.FromContextOrDiscard(ctx).Info("removing the interfaces of an unanswered ADD", "sandbox", rec.ContainerID, "pod", rec.Pod)
			pn.ledger.Adopt(deleting(rec, adds)) // in memory: from the file a later daemon does the same
		}
	}
}

// undoUnanswered removes the links that no record names: the ADD that made them was
// killed before it answered. The plugin repeats its ADD, or the runtime makes another
// sandbox. Until the links are gone it is unknown which PodAttachment they belong to, so
// no PodAttachment is reported as never plugged.
func (pn *podNetwork) undoUnanswered(ctx context.Context, found []plug.Found) {
	known := recordedLinks(pn.ledger.All())
	for _, f := range found {
		if known[f.HostLink] {
			continue
		}
		key := strayKey(f)
		rec := pn.ledger.Get(key)
		if rec == nil {
			rec = &ledger.Record{Version: ledger.Version, ContainerID: key, BootID: pn.ledger.BootID}
			logr.FromContextOrDiscard(ctx).Info("removing a link of an unanswered ADD", "sandbox", f.ContainerID, "link", f.HostLink)
			pn.metrics.swept.WithLabelValues("link").Inc()
		}
		pn.ledger.Adopt(rec.With(func(r *ledger.Record) {
			r.Adds = append(r.Adds, ledger.Add{IfName: f.Name, State: ledger.Deleting, Interfaces: []ledger.Interface{foundInterface(f)}})
		}))
		pn.remover.enqueue(key)
	}
}

// recordedLinks returns the links on the host that records name.
func recordedLinks(records []*ledger.Record) map[string]bool {
	known := map[string]bool{}
	for _, rec := range records {
		for _, i := range rec.Interfaces() {
			known[i.Made.HostLink] = true
		}
	}
	return known
}

// foundInterface returns the recorded form of an interface that was found by its link.
func foundInterface(f plug.Found) ledger.Interface {
	i := ledger.Interface{Made: f.Made}
	i.Name = f.Name
	return i
}

// strayKey returns the container ID of a link, or a replacement if the link does not name
// its sandbox.
func strayKey(f plug.Found) string {
	if f.ContainerID == "" {
		return "link:" + f.HostLink // no container ID has a colon
	}
	return f.ContainerID
}

// rebuild puts a record of a sandbox in place that has its links in the kernel.
func (pn *podNetwork) rebuild(ctx context.Context, containerID string, found []plug.Found) {
	log := logr.FromContextOrDiscard(ctx)
	rec := pn.rebuildRecord(containerID, found)
	if err := pn.ledger.Put(rec); err != nil {
		log.Error(err, "rebuilt record is kept in memory alone", "sandbox", containerID)
		pn.ledger.Adopt(rec)
	}
	log.Info("record rebuilt from the links in the kernel", "sandbox", containerID, "interfaces", len(rec.Interfaces()))
}

// rebuildRecord returns a record for a sandbox whose record was damaged or lost, with no more
// than a DEL needs. Its pod becomes known when the status of a PodAttachment names the
// sandbox (ledger.Judge). The interface with the smallest index was made first and is the
// one of the ADD.
func (pn *podNetwork) rebuildRecord(containerID string, found []plug.Found) *ledger.Record {
	rec := pn.ledger.Get(containerID)
	if rec == nil {
		rec = &ledger.Record{Version: ledger.Version, ContainerID: containerID, BootID: pn.ledger.BootID, Incomplete: true}
	}
	if rec.Plug() != nil {
		return rec
	}
	add := ledger.Add{State: ledger.Attached}
	found = slices.SortedFunc(slices.Values(found), func(a, b plug.Found) int { return cmp.Compare(a.Index, b.Index) })
	for _, f := range found {
		if f.ContainerID == containerID {
			add.Interfaces = append(add.Interfaces, foundInterface(f))
		}
	}
	if len(add.Interfaces) == 0 {
		return rec
	}
	add.IfName = add.Interfaces[0].Name
	return rec.WithAdd(add)
}

// sweep removes every dead sandbox and all links of Fairlead that belong to no sandbox,
// and starts the repair of changes on the host's side. An error with one sandbox stops no
// other.
func (pn *podNetwork) sweep(ctx context.Context) error {
	return errors.Join(pn.sweepUnlisted(ctx, nil)...)
}

// sweepUnlisted is a sweep that leaves the records of the listed containers alone.
func (pn *podNetwork) sweepUnlisted(ctx context.Context, listed map[string]bool) (errs []error) {
	pn.registry.Settle()
	found, err := pn.kernel.Found(ctx)
	if err != nil {
		return []error{fmt.Errorf("list the links of sandboxes: %w", err)}
	}
	// A link is made after its record, so the records are read after the links.
	records := pn.ledger.All()
	ours := recordedLinks(records)
	there := make(map[string]plug.Found, len(found))
	var todo errgroup.Group
	todo.SetLimit(removers)
	for _, f := range found {
		there[f.HostLink] = f
		if !ours[f.HostLink] {
			todo.Go(func() error { return pn.removeStray(ctx, f) })
		}
	}
	for _, rec := range records {
		if listed[rec.ContainerID] {
			continue
		}
		dead, err := pn.dead(ctx, rec)
		if err == nil && (len(dead) > 0 || rec.Incomplete) {
			err = pn.reap(ctx, rec.ContainerID)
		} else if astray(rec, there) {
			pn.repairer.queue.Add(rec.ContainerID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err))
		}
	}
	errs = append(errs, pn.noteGone(ctx, records, there)...)
	pn.host.KernelChanged()
	if err := todo.Wait(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// noteGone notes for the statuses which interfaces other programs have removed from the
// host. found has the links that are there. The note about a sandbox that cannot be looked
// at stays.
func (pn *podNetwork) noteGone(ctx context.Context, records []*ledger.Record, found map[string]plug.Found) (errs []error) {
	all := make(map[string][]string, len(records))
	for _, rec := range records {
		names, err := pn.goneLinks(ctx, rec, found)
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err))
			names = pn.statuses.Gone(rec.ContainerID)
		}
		all[rec.ContainerID] = names
	}
	pn.statuses.SetGone(all, records)
	return errs
}

// goneLinks returns the names of the interfaces of a sandbox whose links are gone.
func (pn *podNetwork) goneLinks(ctx context.Context, rec *ledger.Record, found map[string]plug.Found) (names []string, err error) {
	add := rec.Plugged()
	if add == nil {
		return nil, nil
	}
	for _, i := range add.Interfaces {
		if _, there := found[i.Made.HostLink]; there || i.State != "" || i.Made.HostLink == "" {
			continue
		}
		gone, err := pn.kernel.Gone(ctx, i.Made)
		if err != nil {
			return nil, err
		}
		if gone {
			names = append(names, i.Name)
		}
	}
	return names, nil
}

// dead returns the ADDs of a sandbox that no process can use any more: the sandbox is of
// an earlier boot, or every interface of the ADD is gone.
func (pn *podNetwork) dead(ctx context.Context, rec *ledger.Record) (dead []ledger.Add, err error) {
	attached := rec.In(ledger.Attached)
	if rec.BootID != pn.ledger.BootID {
		return attached, nil
	}
	for _, a := range attached {
		gone, err := pn.gone(ctx, a.Interfaces)
		if err != nil {
			return nil, err
		}
		if gone {
			dead = append(dead, a)
		}
	}
	return dead, nil
}

func (pn *podNetwork) gone(ctx context.Context, interfaces []ledger.Interface) (bool, error) {
	for _, i := range interfaces {
		if gone, err := pn.kernel.Gone(ctx, i.Made); !gone || err != nil {
			return false, err
		}
	}
	return true, nil
}

// reap releases the dead ADDs of a sandbox. It waits for running operations on the
// sandbox first, since they may change the result.
func (pn *podNetwork) reap(ctx context.Context, containerID string) error {
	return pn.turns.Do(ctx, containerID, func(ctx context.Context) error {
		rec := pn.ledger.Get(containerID)
		if rec == nil || !rec.Incomplete && !rec.Has(ledger.Attached) {
			return nil
		}
		dead, err := pn.dead(ctx, rec)
		if err != nil {
			return err
		}
		if len(dead) == 0 {
			return pn.complete(ctx, rec)
		}
		for _, a := range dead {
			logr.FromContextOrDiscard(ctx).Info("sandbox is gone without a DEL", "sandbox", containerID, "interface", a.IfName, "pod", rec.Pod)
			kind := "sandbox"
			if a.AddressOnly() {
				kind = "addresses"
			}
			pn.metrics.swept.WithLabelValues(kind).Inc()
		}
		return pn.release(ctx, rec, dead...)
	})
}

// complete clears the mark Incomplete of a record when no interface can be missing from
// it. That is so if none of the PodAttachments that it may belong to has an interface
// without a link on the host, or if no namespace has an address of such an interface. A
// namespace that cannot be read is no proof. An interface that plugins have made is gone
// after their DEL (removeUnrecorded).
func (pn *podNetwork) complete(ctx context.Context, rec *ledger.Record) error {
	if !rec.Incomplete || !pn.registry.IsSynced() {
		return nil // the PodAttachments that it may belong to are not known yet
	}
	var addrs []netip.Addr
	for _, key := range pn.registry.Keys() {
		pa := pn.registry.Get(key)
		if pa == nil {
			continue
		}
		for _, i := range pn.ledger.MayHave(rec, pa) {
			if i.Binding.Delegate != nil {
				return nil // its DEL comes first
			}
			its, err := ledger.PlainAddresses(pa, i)
			if err != nil {
				return err
			}
			addrs = append(addrs, its...)
		}
	}
	if len(addrs) > 0 {
		if len(rec.Adds) > 0 {
			return nil // their DELs come first
		}
		path, err := pn.statuses.Holding(ctx, addrs)
		if err != nil || path != "" {
			return err
		}
		logr.FromContextOrDiscard(ctx).Info("sandbox of a damaged record is gone without a DEL for its addresses", "sandbox", rec.ContainerID)
		pn.metrics.swept.WithLabelValues("addresses").Inc()
	}
	return pn.ledger.Complete(rec)
}

// removeStray removes a link that no record names. No ADD makes a link without a record,
// so its record was lost.
func (pn *podNetwork) removeStray(ctx context.Context, f plug.Found) error {
	return pn.turns.Do(ctx, strayKey(f), func(ctx context.Context) error {
		if recordedLinks(pn.ledger.All())[f.HostLink] {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("removing a link that belongs to no sandbox", "link", f.HostLink, "sandbox", f.ContainerID)
		pn.metrics.swept.WithLabelValues("link").Inc()
		return pn.kernel.Remove(ctx, f.Made)
	})
}

// reaper reaps the sandboxes of PodAttachments that are being deleted, so that the
// addresses of a dead one need not wait for the next sweep.
type reaper struct {
	network *podNetwork
	queue   workqueue.TypedRateLimitingInterface[string]
}

// Run works until ctx ends.
func (r *reaper) Run(ctx context.Context) error {
	queue.Run(ctx, r.queue, 4, func(ctx context.Context, containerID string) error {
		err := r.network.reap(ctx, containerID)
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "reaping a sandbox failed, will be tried again", "sandbox", containerID)
		}
		return err
	})
	return nil
}
