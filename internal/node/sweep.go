package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
)

// adopt takes over the state of the previous daemon, without the API server. The sandbox of a
// damaged or lost record keeps its links. Nothing is served and nothing acknowledged until
// adopt returns.
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
		log.Error(b.Err, "record was damaged and set aside: the sandbox keeps its interfaces until its namespace ends", "sandbox", b.ContainerID)
		pn.adoptDamaged(ctx, b.ContainerID)
	}
	for _, f := range found {
		if lost && f.ContainerID != "" && pn.ledger.Get(f.ContainerID) == nil {
			log.Info("the directory of records was removed while a sandbox lived: it keeps its interfaces until its namespace ends", "sandbox", f.ContainerID)
			pn.adoptDamaged(ctx, f.ContainerID)
		}
	}
	pn.undoAttaching(ctx)
	for _, rec := range pn.ledger.All() {
		pn.remover.enqueue(rec.ContainerID) // does nothing if no ADD is being deleted
		pn.follower.adopt(rec)
		if add := rec.Plugged(); add != nil {
			pn.firewall.Add(rec.ContainerID, add)
		}
		if rec.Damaged {
			pn.firewall.Add(rec.ContainerID, addOf(rec.ContainerID, found))
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
		key := strayKey(f)
		rec := pn.ledger.Get(key)
		if known[f.HostLink] || rec != nil && rec.Damaged {
			continue
		}
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

// adoptDamaged takes over a sandbox whose record was damaged or lost.
func (pn *podNetwork) adoptDamaged(ctx context.Context, containerID string) {
	if err := pn.ledger.AdoptDamaged(containerID); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "damaged record is known to this daemon alone", "sandbox", containerID)
	}
}

// addOf returns the links of a sandbox whose record is damaged, for the packet filter.
func addOf(containerID string, found []plug.Found) *ledger.Add {
	add := &ledger.Add{}
	for _, f := range found {
		if f.ContainerID == containerID {
			add.Interfaces = append(add.Interfaces, foundInterface(f))
		}
	}
	return add
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
		if err == nil && (len(dead) > 0 || rec.Damaged) {
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
		if rec == nil {
			return nil
		}
		if rec.Damaged {
			return pn.letGo(ctx, rec)
		}
		dead, err := pn.dead(ctx, rec)
		if err != nil {
			return err
		}
		if len(dead) == 0 {
			return nil
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

// letGo removes a damaged record when the namespace of its sandbox has ended: none of its links
// is on the host, and mayLive is false.
func (pn *podNetwork) letGo(ctx context.Context, rec *ledger.Record) error {
	if rec.BootID == pn.ledger.BootID {
		if !pn.registry.IsSynced() {
			return nil // the PodAttachments that it may be of are not known yet
		}
		found, err := pn.foundOf(ctx, rec.ContainerID)
		if err != nil {
			return err
		}
		for _, f := range found {
			if gone, err := pn.kernel.Gone(ctx, f.Made); !gone || err != nil {
				return err
			}
		}
		if alive, err := pn.mayLive(ctx, rec); alive || err != nil {
			return err
		}
	}
	logr.FromContextOrDiscard(ctx).Info("sandbox of a damaged record is gone", "sandbox", rec.ContainerID)
	pn.firewall.Remove(rec.ContainerID)
	return pn.ledger.Finish(rec.ContainerID)
}

// mayLive reports whether the sandbox of a damaged record may have interfaces that have no link
// on the host. It has not if the namespace that its DEL named is gone, or if no namespace has an
// address of such an interface, of the PodAttachments that it may be of. A namespace that cannot
// be read is no proof. The addresses of an interface that plugins make are not all known.
func (pn *podNetwork) mayLive(ctx context.Context, rec *ledger.Record) (bool, error) {
	if (link.Place{Path: rec.Netns, ID: rec.NetnsID}).Gone() {
		return false, nil
	}
	var addrs []netip.Addr
	for _, key := range pn.registry.Keys() {
		pa := pn.registry.Get(key)
		if pa == nil || !rec.MayBeOf(pa) {
			continue
		}
		for _, i := range pa.Spec.Interfaces {
			if i.Binding.Delegate != nil {
				return true, nil
			}
			if pn.kernel.Finds(i.Binding) {
				continue
			}
			its, err := ledger.PlainAddresses(pa, i)
			if err != nil {
				return false, err
			}
			addrs = append(addrs, its...)
		}
	}
	if len(addrs) == 0 {
		return false, nil
	}
	path, err := pn.statuses.Holding(ctx, addrs)
	return path != "", err
}

// removeStray removes a link that no record names. No ADD makes a link without a record,
// so its record was lost. The links of a sandbox whose record is damaged stay until they are
// gone from it.
func (pn *podNetwork) removeStray(ctx context.Context, f plug.Found) error {
	return pn.turns.Do(ctx, strayKey(f), func(ctx context.Context) error {
		if recordedLinks(pn.ledger.All())[f.HostLink] {
			return nil
		}
		if rec := pn.ledger.Get(f.ContainerID); rec != nil && rec.Damaged {
			if gone, err := pn.kernel.Gone(ctx, f.Made); !gone || err != nil {
				return err
			}
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
