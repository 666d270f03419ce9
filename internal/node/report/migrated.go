package report

import (
	"context"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// migratedRecheck is the time between two searches for the sandbox of a migrated
// PodAttachment.
const migratedRecheck = 2 * time.Second

// migratedInUse reports whether a network namespace of this node still has an address of
// a PodAttachment that a migration wrote. If so, the PodAttachment is checked again after
// migratedRecheck.
//
// The sandbox of such a PodAttachment may be older than this daemon's service of its
// network. It then has no record, and its DEL may go to the program that served the
// network before, so a missing record does not prove that nothing is plugged. The
// namespace of the sandbox does: it has the addresses until its interfaces are gone. A
// pod that was force-deleted keeps them until its containers have ended. A sandbox that
// this daemon plugs for the pod has a record, and Judge decides by it before this check.
func (a *Statuses) migratedInUse(ctx context.Context, pa *v1alpha1.PodAttachment) (bool, error) {
	if pa.Labels[v1alpha1.LabelMigratedFrom] == "" {
		return false, nil
	}
	var addrs []netip.Addr
	for _, i := range pa.Spec.Interfaces {
		plain, err := ledger.PlainAddresses(pa, i)
		if err != nil {
			return false, err
		}
		addrs = append(addrs, plain...)
	}
	path, err := a.Holding(ctx, addrs)
	if err != nil || path == "" {
		return false, err
	}
	logr.FromContextOrDiscard(ctx).Info("waiting for a sandbox that was there before the migration", "podAttachment", apiserver.KeyOf(pa), "namespace", path)
	a.queue.AddAfter(apiserver.KeyOf(pa), migratedRecheck)
	return true, nil
}
