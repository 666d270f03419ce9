package background

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
)

// Adopt takes over the state of the previous daemon, without the API server. The sandbox of a
// damaged or lost record keeps its links. Nothing is served and nothing acknowledged until
// Adopt returns.
func (b *Background) Adopt(ctx context.Context, l *locks.Locks, s Sandboxes) error {
	b.locks, b.sandboxes = l, s
	log := logr.FromContextOrDiscard(ctx)
	found, err := b.Kinds.Found(ctx)
	if err != nil {
		return fmt.Errorf("look for links of earlier sandboxes: %w", err)
	}
	if err := b.Ledger.Restore(sandboxesOf(found)); err != nil {
		return err
	}
	bad, err := b.Ledger.Read()
	if err != nil {
		return err
	}
	for _, d := range bad {
		log.Error(d.Err, "record was damaged and set aside: the sandbox keeps its interfaces until its namespace ends", "sandbox", d.ContainerID)
		b.adoptDamaged(ctx, d.ContainerID)
	}
	b.undoAttaching(ctx)
	for _, rec := range b.Ledger.All() {
		b.Enqueue(Remove, rec.ContainerID) // does nothing if no ADD is being deleted
		b.adoptHotPlug(rec)
		if add := rec.Attached(); add != nil {
			b.Firewall.Add(rec.ContainerID, add)
		}
		if rec.Damaged && rec.ContainerID != ledger.LostID {
			log.Info("a sandbox whose record was damaged or lost keeps its interfaces until its namespace ends", "sandbox", rec.ContainerID)
			b.Firewall.Add(rec.ContainerID, addOf(rec.ContainerID, found))
		}
	}
	b.undoUnanswered(ctx, found)
	return nil
}

// undoAttaching removes, by their records, the ADDs that were killed before they
// answered.
func (b *Background) undoAttaching(ctx context.Context) {
	for _, rec := range b.Ledger.All() {
		if adds := rec.In(ledger.Attaching); len(adds) > 0 {
			logr.FromContextOrDiscard(ctx).Info("removing the interfaces of an unanswered ADD", "sandbox", rec.ContainerID, "pod", rec.Pod)
			b.Ledger.Adopt(deleting(rec, adds)) // in memory: from the file a later daemon does the same
		}
	}
}

// undoUnanswered removes the links that no record names: the ADD that made them was
// killed before it answered. The plugin repeats its ADD, or the runtime makes another
// sandbox. Until the links are gone it is unknown which PodAttachment they belong to, so
// no PodAttachment is reported as never plugged. A running sandbox is left alone: a device that
// it was to get, or that returned from it, has the mark of the sandbox on the host.
func (b *Background) undoUnanswered(ctx context.Context, found []plug.Found) {
	known := recordedLinks(b.Ledger.All())
	for _, f := range found {
		key := strayKey(f)
		rec := b.Ledger.Get(key)
		if known[f.HostLink] || rec != nil && rec.Damaged || rec.Attached() != nil {
			continue // the sweep removes a link of an answered ADD that its record does not have
		}
		if rec == nil {
			rec = &ledger.Record{Version: ledger.Version, ContainerID: key, BootID: b.Ledger.BootID}
			logr.FromContextOrDiscard(ctx).Info("removing a link of an unanswered ADD", "sandbox", f.ContainerID, "link", f.HostLink)
			b.Swept.WithLabelValues("link").Inc()
		}
		b.Ledger.Adopt(rec.With(func(r *ledger.Record) {
			r.Adds = append(r.Adds, ledger.Add{IfName: f.Name, State: ledger.Deleting, Interfaces: []ledger.Interface{foundInterface(f)}})
		}))
		b.Enqueue(Remove, key)
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

// adoptDamaged takes over a sandbox whose record was damaged.
func (b *Background) adoptDamaged(ctx context.Context, containerID string) {
	if err := b.Ledger.AdoptDamaged(containerID); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "damaged record is known to this daemon alone", "sandbox", containerID)
	}
}

// sandboxesOf returns the sandboxes that have links, each once.
func sandboxesOf(found []plug.Found) (containerIDs []string) {
	for _, f := range found {
		if f.ContainerID != "" && !slices.Contains(containerIDs, f.ContainerID) {
			containerIDs = append(containerIDs, f.ContainerID)
		}
	}
	return containerIDs
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

// Sweep removes every dead sandbox and all links of Fairlead that belong to no sandbox,
// and starts the repair of changes on the host's side. An error with one sandbox stops no
// other.
func (b *Background) Sweep(ctx context.Context) error {
	return errors.Join(b.sweepUnlisted(ctx, nil)...)
}

// sweepUnlisted is a sweep that leaves the records of the listed containers alone.
func (b *Background) sweepUnlisted(ctx context.Context, listed map[string]bool) (errs []error) {
	b.Registry.DropOverdue()
	found, err := b.Kinds.Found(ctx)
	if err != nil {
		return []error{fmt.Errorf("list the links of sandboxes: %w", err)}
	}
	// A link is made after its record, so the records are read after the links.
	records := b.Ledger.All()
	ours := recordedLinks(records)
	there := make(map[string]plug.Found, len(found))
	var todo errgroup.Group
	todo.SetLimit(removers)
	for _, f := range found {
		if !f.Shaper {
			there[f.HostLink] = f
		}
		if !ours[f.HostLink] {
			todo.Go(func() error { return b.removeStray(ctx, f) })
		}
	}
	for _, rec := range records {
		if listed[rec.ContainerID] {
			continue
		}
		dead, err := b.dead(ctx, rec)
		if err == nil && (len(dead) > 0 || rec.Damaged) {
			err = b.Reap(ctx, rec.ContainerID)
		} else if astray(rec, there) {
			b.Enqueue(Repair, rec.ContainerID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err))
		}
	}
	errs = append(errs, b.noteGone(ctx, records, there)...)
	b.Host.KernelChanged()
	if err := todo.Wait(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// noteGone notes for the statuses which interfaces other programs have removed from the
// host. found has the links that are there. The note about a sandbox that cannot be looked
// at stays.
func (b *Background) noteGone(ctx context.Context, records []*ledger.Record, found map[string]plug.Found) (errs []error) {
	all := make(map[string][]string, len(records))
	for _, rec := range records {
		names, err := b.goneLinks(ctx, rec, found)
		if err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err))
			names = b.Statuses.Gone(rec.ContainerID)
		}
		all[rec.ContainerID] = names
	}
	b.Statuses.SetGone(all, records)
	return errs
}

// goneLinks returns the names of the interfaces of a sandbox whose links are gone. Those without a
// link on the host are looked for in the namespace.
func (b *Background) goneLinks(ctx context.Context, rec *ledger.Record, found map[string]plug.Found) (names []string, err error) {
	add := rec.Attached()
	if add == nil || add.AddressOnly() {
		return nil, nil
	}
	var hidden []string
	for _, i := range add.Interfaces {
		if _, there := found[i.Made.HostLink]; there || i.State != "" {
			continue
		}
		if i.Made.HostLink == "" {
			if i.Binding.Delegate == nil { // a plugin may make no link, as for a device of DPDK
				hidden = append(hidden, i.Name)
			}
			continue
		}
		gone, err := b.Kinds.Gone(ctx, i.Made)
		if err != nil {
			return nil, err
		}
		if gone {
			names = append(names, i.Name)
		}
	}
	if len(hidden) == 0 { // as a rule
		return names, nil
	}
	inside, err := b.Statuses.Inside(ctx, rec)
	if inside == nil || err != nil {
		return names, err
	}
	return append(names, slices.DeleteFunc(hidden, func(name string) bool { _, there := inside[name]; return there })...), nil
}

// dead returns the ADDs of a sandbox that no process can use any more: the sandbox is of
// an earlier boot, or every interface of the ADD is gone.
func (b *Background) dead(ctx context.Context, rec *ledger.Record) (dead []ledger.Add, err error) {
	attached := rec.In(ledger.Attached)
	if rec.BootID != b.Ledger.BootID {
		return attached, nil
	}
	for _, a := range attached {
		gone, err := b.gone(ctx, a.Interfaces)
		if err != nil {
			return nil, err
		}
		if gone {
			dead = append(dead, a)
		}
	}
	return dead, nil
}

func (b *Background) gone(ctx context.Context, interfaces []ledger.Interface) (bool, error) {
	for _, i := range interfaces {
		if gone, err := b.Kinds.Gone(ctx, i.Made); !gone || err != nil {
			return false, err
		}
	}
	return true, nil
}

// Reap releases the dead ADDs of a sandbox. It waits for running operations on the
// sandbox first, since they may change the result.
func (b *Background) Reap(ctx context.Context, containerID string) error {
	return b.locks.Do(ctx, containerID, func(ctx context.Context) error {
		rec := b.Ledger.Get(containerID)
		if rec == nil {
			return nil
		}
		if rec.Damaged {
			return b.finishDamaged(ctx, rec)
		}
		dead, err := b.dead(ctx, rec)
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
			b.Swept.WithLabelValues(kind).Inc()
		}
		return b.Release(ctx, rec, dead...)
	})
}

// finishDamaged removes a damaged record when the namespace of its sandbox has ended: none of its links
// is on the host, and mayLive is false.
func (b *Background) finishDamaged(ctx context.Context, rec *ledger.Record) error {
	if rec.BootID == b.Ledger.BootID {
		if !b.Registry.IsSynced() {
			return nil // the PodAttachments that it may be of are not known yet
		}
		if rec.ContainerID == ledger.LostID {
			return b.findLost(ctx)
		}
		if b.Ledger.IsLost() {
			return nil // findLost would not know that it has ended
		}
		found, err := b.Kinds.FoundOf(ctx, rec.ContainerID)
		if err != nil {
			return err
		}
		for _, f := range found {
			if gone, err := b.Kinds.Gone(ctx, f.Made); !gone || err != nil {
				return err
			}
		}
		if alive, err := b.mayLive(ctx, rec); alive || err != nil {
			return err
		}
	}
	logr.FromContextOrDiscard(ctx).Info("sandbox of a damaged record is gone", "sandbox", rec.ContainerID)
	b.Firewall.Remove(rec.ContainerID)
	return b.Ledger.Finish(rec.ContainerID)
}

// mayLive reports whether the sandbox of a damaged record may have interfaces that have no link
// on the host. It has not if the namespace that its DEL named is gone, or if no namespace has an
// address of such an interface, of the PodAttachments that it may be of. The record knows that of a
// PodAttachment that is away. A namespace that cannot be read is no proof. The addresses of an
// interface that plugins make are not all known.
func (b *Background) mayLive(ctx context.Context, rec *ledger.Record) (bool, error) {
	if (link.Place{Path: rec.Netns, ID: rec.NetnsID}).Gone() {
		return false, nil
	}
	var interfaces []v1alpha1.Interface
	for _, key := range b.Registry.Keys() {
		if pa := b.Registry.Get(key); pa != nil && rec.MayBeOf(pa) {
			interfaces = append(interfaces, pa.Spec.Interfaces...)
		}
	}
	if len(interfaces) == 0 {
		interfaces = rec.Wanted
	}
	var addrs []netip.Addr
	for _, i := range interfaces {
		if i.Binding.Delegate != nil && !rec.Ended {
			return true, nil // its plugins alone know the addresses
		}
		if i.Binding.Delegate != nil || b.Kinds.Finds(i.Binding) {
			continue
		}
		its, err := ledger.PlainAddresses(i)
		if err != nil {
			return false, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err)
		}
		addrs = append(addrs, its...)
	}
	if len(addrs) == 0 {
		return false, nil
	}
	path, err := b.Statuses.Namespaces.Holding(ctx, addrs)
	return path != "", err
}

// removeStray removes a link that no record names. No ADD makes a link without a record,
// so its record was lost. The links of a sandbox whose record is damaged stay until they are
// gone from it.
func (b *Background) removeStray(ctx context.Context, f plug.Found) error {
	return b.locks.Do(ctx, strayKey(f), func(ctx context.Context) error {
		if recordedLinks(b.Ledger.All())[f.HostLink] {
			return nil
		}
		if rec := b.Ledger.Get(f.ContainerID); rec != nil && rec.Damaged {
			if gone, err := b.Kinds.Gone(ctx, f.Made); !gone || err != nil {
				return err
			}
		}
		logr.FromContextOrDiscard(ctx).Info("removing a link that belongs to no sandbox", "link", f.HostLink, "sandbox", f.ContainerID)
		b.Swept.WithLabelValues("link").Inc()
		return b.Kinds.Remove(ctx, f.Made)
	})
}

// RulesChanged queues the sandboxes whose host ends in Open vSwitch may not be shut any more,
// because a chain or the table that shuts them was deleted, as by "nft flush ruleset".
func (b *Background) RulesChanged(c host.RuleChange) {
	if c.Table != "" && (c.Table != nft.ShutTable || !c.Deleted) {
		return
	}
	open := func(i ledger.Interface) bool {
		return i.Made.Kind == plug.KindOVS && (c.Chain == "" || c.Chain == i.Made.HostLink)
	}
	for _, rec := range b.Ledger.All() {
		if add := rec.Attached(); add != nil && slices.ContainsFunc(add.Interfaces, open) {
			b.Enqueue(Repair, rec.ContainerID)
		}
	}
}

// astray reports whether a link of a sandbox on the host differs from the link that was
// made. A missing link cannot be repaired and does not count.
func astray(rec *ledger.Record, found map[string]plug.Found) bool {
	return slices.ContainsFunc(rec.Interfaces(), func(i ledger.Interface) bool {
		f, ok := found[i.Made.HostLink]
		return ok && f.Astray(i.Made)
	})
}

// repair repairs the host's side of a sandbox's interfaces. A missing interface cannot be
// repaired: its pod has to be replaced.
func (b *Background) repair(ctx context.Context, containerID string) error {
	return b.locks.Do(ctx, containerID, func(ctx context.Context) error {
		rec := b.Ledger.Get(containerID)
		add := rec.Attached()
		if add == nil {
			return nil
		}
		var errs []error
		var repaired []string
		for _, i := range add.Interfaces {
			if i.State != "" {
				continue // it is being plugged or unplugged
			}
			changed, err := b.Kinds.Repair(ctx, i.Made)
			if changed {
				repaired = append(repaired, i.Name)
			}
			errs = append(errs, err)
		}
		if len(repaired) > 0 {
			logr.FromContextOrDiscard(ctx).Info("repaired the host's side of a sandbox", "sandbox", containerID, "pod", rec.Pod, "interfaces", repaired)
		}
		return errors.Join(errs...)
	})
}
