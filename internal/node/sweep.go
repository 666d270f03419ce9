package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev"
)

// adopt takes over what the daemon before left, without the API server: the
// records, and from the kernel what damaged records can no longer say. Nothing
// is served and nothing acknowledged until it returns.
func (v *verbs) adopt(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	records, bad, err := v.ledger.files.read()
	if err != nil {
		return err
	}
	links, err := v.kernel.Links(ctx)
	if err != nil {
		return fmt.Errorf("look for links of earlier sandboxes: %w", err)
	}
	for _, b := range bad {
		log.Error(b.err, "record was damaged and set aside", "sandbox", b.containerID)
		if rec := rebuilt(b.containerID, v.ledger.bootID, links); rec != nil {
			if err := v.ledger.put(rec); err != nil {
				log.Error(err, "rebuilt record is kept in memory alone", "sandbox", b.containerID)
				v.ledger.adopt(rec)
			}
			v.firewall.add(rec)
			log.Info("record rebuilt from the links in the kernel", "sandbox", b.containerID, "links", rec.hostNames())
		}
	}
	for _, rec := range records {
		v.ledger.adopt(rec)
		if rec.State == deleting {
			v.remover.enqueue(rec.ContainerID)
		} else {
			v.firewall.add(rec)
		}
	}
	v.undoUnanswered(ctx, links)
	if err := v.adoptAddresses(ctx); err != nil {
		return err
	}
	v.health.begin()
	if err := v.sweep(ctx); err != nil {
		log.Error(err, "sweep was not complete, will be tried again")
	}
	return nil
}

// undoUnanswered lets go the links that no record speaks of: the ADD that made
// them was killed before it answered. The plugin asks again, or the runtime makes
// another sandbox. Until they are gone nobody knows which PodAttachment they are
// of, so none is said to have never been plugged.
func (v *verbs) undoUnanswered(ctx context.Context, links []netdev.HostLink) {
	known := map[string]bool{}
	for _, rec := range v.ledger.all() {
		for _, name := range rec.hostNames() {
			known[name] = true
		}
	}
	for _, l := range links {
		if known[l.Name] {
			continue
		}
		key := strayKey(l)
		rec := v.ledger.get(key)
		if rec == nil {
			rec = &record{Version: recordVersion, ContainerID: key, BootID: v.ledger.bootID, State: deleting}
			logr.FromContextOrDiscard(ctx).Info("removing what an ADD left that was not answered", "sandbox", l.ContainerID, "link", l.Name)
			v.metrics.swept.WithLabelValues("link").Inc()
		}
		v.ledger.adopt(rec.with(func(r *record) {
			r.Interfaces = append(slices.Clone(r.Interfaces), recordedInterface{HostName: l.Name})
		}))
		v.remover.enqueue(key)
	}
}

// strayKey stands for the container ID of a link that may not say its own.
func strayKey(l netdev.HostLink) string {
	if l.ContainerID == "" {
		return "link:" + l.Name // no container ID has a colon
	}
	return l.ContainerID
}

// rebuilt is a record with no more than a DEL needs, or nil when no link of the
// sandbox is left. Its pod is known again when the status of a PodAttachment
// names the sandbox (ledger.identify). The interface that was made first, which has
// the smallest index, is that of the ADD.
func rebuilt(containerID, bootID string, links []netdev.HostLink) *record {
	rec := &record{Version: recordVersion, ContainerID: containerID, BootID: bootID, State: attached}
	links = slices.SortedFunc(slices.Values(links), func(a, b netdev.HostLink) int { return cmp.Compare(a.Index, b.Index) })
	for _, l := range links {
		if l.ContainerID == containerID {
			i := recordedInterface{HostName: l.Name}
			i.Name = l.Interface
			rec.Interfaces = append(rec.Interfaces, i)
		}
	}
	if len(rec.Interfaces) == 0 {
		return nil
	}
	rec.IfName = rec.Interfaces[0].Name
	return rec
}

// sweep lets go every sandbox that is no more, removes links of ours that belong to
// none, and has put in order what somebody changed on the host's side. One
// sandbox's error stops no other.
func (v *verbs) sweep(ctx context.Context) error {
	return errors.Join(v.sweepUnlisted(ctx, nil)...)
}

// sweepUnlisted is sweep without the containers that are listed.
func (v *verbs) sweepUnlisted(ctx context.Context, listed map[string]bool) (errs []error) {
	v.registry.settle()
	links, err := v.kernel.Links(ctx)
	if err != nil {
		return []error{fmt.Errorf("list the links of sandboxes: %w", err)}
	}
	// A link is made after its record, so the records are looked at second.
	records := v.ledger.all()
	there, ours := byHostName(links), map[string]bool{}
	for _, rec := range records {
		for _, name := range rec.hostNames() {
			ours[name] = true
		}
	}
	var todo errgroup.Group
	todo.SetLimit(removers)
	for _, l := range links {
		if !ours[l.Name] {
			todo.Go(func() error { return v.removeStray(ctx, l) })
		}
	}
	for _, rec := range records {
		switch {
		case rec.State != attached || listed[rec.ContainerID]:
		case v.dead(rec, there):
			if err := v.reap(ctx, rec.ContainerID); err != nil {
				errs = append(errs, fmt.Errorf("sandbox %s: %w", rec.ContainerID, err))
			}
		case astray(rec, there):
			v.mender.queue.Add(rec.ContainerID)
		}
	}
	v.host.kernelChanged()
	for _, err := range []error{todo.Wait(), v.sweepAddresses(ctx, listed)} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func byHostName(links []netdev.HostLink) map[string]netdev.HostLink {
	there := make(map[string]netdev.HostLink, len(links))
	for _, l := range links {
		there[l.Name] = l
	}
	return there
}

// dead tells whether nothing can use a sandbox any more: it is of an earlier
// boot, its namespace is gone, or all its links are, which the kernel takes
// away together with the namespace.
func (v *verbs) dead(rec *record, there map[string]netdev.HostLink) bool {
	if rec.BootID != v.ledger.bootID {
		return true
	}
	links := 0
	for _, name := range rec.hostNames() {
		if _, ok := there[name]; ok {
			links++
		}
	}
	if links == 0 {
		return true
	}
	return rec.Netns != "" && look(v.kernel, rec) == absent
}

// reap lets a sandbox go that is dead, when no operation on it is under way that
// changes the picture.
func (v *verbs) reap(ctx context.Context, containerID string) error {
	return v.manager.Do(ctx, containerID, func(ctx context.Context) error {
		rec := v.ledger.get(containerID)
		if rec == nil || rec.State != attached {
			return nil
		}
		links, err := v.kernel.Links(ctx)
		if err != nil {
			return fmt.Errorf("list the links of sandboxes: %w", err)
		}
		if !v.dead(rec, byHostName(links)) {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("sandbox is gone without a DEL", "sandbox", containerID, "pod", rec.Pod)
		v.metrics.swept.WithLabelValues("sandbox").Inc()
		return v.release(ctx, rec)
	})
}

// removeStray removes a link that no record speaks of. No ADD makes one without
// a record, so it is what a lost record left.
func (v *verbs) removeStray(ctx context.Context, l netdev.HostLink) error {
	return v.manager.Do(ctx, strayKey(l), func(ctx context.Context) error {
		for _, rec := range v.ledger.all() {
			if slices.Contains(rec.hostNames(), l.Name) {
				return nil
			}
		}
		logr.FromContextOrDiscard(ctx).Info("removing a link that belongs to no sandbox", "link", l.Name, "sandbox", l.ContainerID)
		v.metrics.swept.WithLabelValues("link").Inc()
		return v.kernel.Detach(ctx, l.Name)
	})
}

// reaper looks after the sandboxes whose PodAttachments are being deleted: if
// one is dead, its addresses need not wait for the next sweep.
type reaper struct {
	verbs *verbs
	queue workqueue.TypedRateLimitingInterface[string]
}

// Run works until ctx ends.
func (r *reaper) Run(ctx context.Context) error {
	work(ctx, r.queue, 4, func(ctx context.Context, containerID string) error {
		var err error
		if id, ifName, ok := strings.Cut(containerID, keySeparator); ok {
			err = r.verbs.reapAddresses(ctx, addressKey{id, ifName})
		} else {
			err = r.verbs.reap(ctx, containerID)
		}
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "looking after a sandbox failed, will be tried again", "sandbox", containerID)
		}
		return err
	})
	return nil
}
