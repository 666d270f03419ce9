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

// migratedLook is the time between two looks for a sandbox that is to go.
const migratedLook = 2 * time.Second

// migratedInUse says whether something on this node still has an address of a
// PodAttachment that a migration wrote, and has it looked at again later if so.
//
// Its sandbox was made before this daemon served its network, so there is no
// record of it, and no DEL need ever come: the program that was there before may
// get it. So "no record" does not say that nothing is plugged. What can be seen of the
// sandbox is its network namespace, and that has the addresses until its
// interfaces are gone; a pod that was force-deleted keeps them until its
// containers have ended. A sandbox that this daemon makes for the pod has a
// record as any other, and is judged by that before this is asked.
func (a *Statuses) migratedInUse(ctx context.Context, pa *v1alpha1.PodAttachment) (bool, error) {
	if pa.Labels[v1alpha1.LabelMigratedFrom] == "" {
		return false, nil
	}
	var addrs []netip.Addr
	for _, i := range pa.Spec.Interfaces {
		its, err := ledger.PlainAddresses(pa, i)
		if err != nil {
			return false, err
		}
		addrs = append(addrs, its...)
	}
	path, err := a.Holding(ctx, addrs)
	if err != nil || path == "" {
		return false, err
	}
	logr.FromContextOrDiscard(ctx).Info("waiting for a sandbox that was there before the migration", "podAttachment", apiserver.KeyOf(pa), "namespace", path)
	a.queue.AddAfter(apiserver.KeyOf(pa), migratedLook)
	return true, nil
}
