package background

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// findLostWhenSynced finds the lost records when the PodAttachments are known.
func (b *Background) findLostWhenSynced(ctx context.Context) {
	select {
	case <-b.Registry.WhenSynced():
		b.Enqueue(Reap, ledger.LostID) // does nothing if none are lost
	case <-ctx.Done():
	}
}

// findLost enters the sandboxes whose records were lost, by the PodAttachments. Until then no
// PodAttachment is reported as detached that they may be of.
func (b *Background) findLost(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	var errs []error
	for _, key := range b.Registry.Keys() {
		pa := b.Registry.Get(key)
		if pa == nil {
			continue
		}
		id, err := b.lostSandbox(ctx, pa)
		switch {
		case errors.Is(err, fault.ErrInvalid):
			log.Error(err, "cannot find out whether a sandbox has lost its record", "podAttachment", key)
		case err != nil: // a namespace that cannot be read now is no proof
			errs = append(errs, fmt.Errorf("find out whether the sandbox of PodAttachment %s has lost its record: %w", key, err))
		}
		if id == "" {
			continue
		}
		err = b.locks.Do(ctx, id, func(ctx context.Context) error {
			adopted, err := b.Ledger.AdoptLost(id, pa)
			if adopted {
				log.Info("the record of a sandbox was lost: it keeps its interfaces until its namespace ends", "sandbox", id, "podAttachment", key)
			}
			if err != nil {
				log.Error(err, "damaged record is known to this daemon alone", "sandbox", id)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // all are read again later
	}
	if err := b.Ledger.Finish(ledger.LostID); err != nil {
		return err
	}
	for _, rec := range b.Ledger.All() {
		if rec.Damaged {
			b.Enqueue(Reap, rec.ContainerID)
		}
	}
	return nil
}

// lostSandbox returns the container ID of a sandbox of a PodAttachment that may live without a
// link on the host; "" if there is none. It is that of the status, in this boot. A
// sandbox that no status names is known by its addresses alone, and gets a name of its own: no
// container ID has a colon. A migration's sandbox never had a record.
func (b *Background) lostSandbox(ctx context.Context, pa *v1alpha1.PodAttachment) (containerID string, err error) {
	s := pa.Status.Sandbox
	ended := s != nil && (s.State != v1alpha1.SandboxAttached || s.BootID != "" && s.BootID != b.Ledger.BootID)
	if ended || pa.Labels[v1alpha1.LabelMigratedFrom] != "" {
		return "", nil
	}
	var addrs []netip.Addr
	hidden := false
	for _, i := range pa.Spec.Interfaces {
		if b.Kinds.Finds(i.Binding) {
			continue
		}
		its, err := ledger.PlainAddresses(i)
		if err != nil {
			return "", fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
		}
		hidden, addrs = true, append(addrs, its...)
	}
	switch {
	case !hidden:
		return "", nil
	case s != nil:
		return s.ID, nil
	case len(addrs) == 0:
		return "", nil
	}
	path, err := b.Statuses.Namespaces.Holding(ctx, addrs)
	if path == "" || err != nil {
		return "", err
	}
	return "pod:" + string(pa.UID), nil
}
