package node

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
)

// repairer puts the host's side of sandboxes in order, of which a CHECK or the sweep
// found that it was not: runtimes need not send a CHECK, and containerd does not.
type repairer struct {
	network *podNetwork
	queue   workqueue.TypedRateLimitingInterface[string]
}

// Run works until ctx ends.
func (m *repairer) Run(ctx context.Context) error {
	queue.Run(ctx, m.queue, 1, func(ctx context.Context, containerID string) error {
		err := m.network.repair(ctx, containerID)
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "host's side of a sandbox is not in order, will be tried again", "sandbox", containerID)
		}
		return err
	})
	return nil
}

// astray reports whether a link of a sandbox on the host is not as it was made. A link
// that is missing cannot be mended.
func astray(rec *ledger.Record, found map[string]plug.Found) bool {
	return slices.ContainsFunc(rec.Interfaces(), func(i ledger.Interface) bool {
		f, ok := found[i.Made.HostLink]
		return ok && f.Astray(i.Made)
	})
}

// repair puts the host's side of a sandbox's interfaces in order. An interface that is
// missing cannot come back: the pod has to.
func (pn *podNetwork) repair(ctx context.Context, containerID string) error {
	return pn.turns.Do(ctx, containerID, func(ctx context.Context) error {
		rec := pn.ledger.Get(containerID)
		if rec == nil || rec.Plug() == nil || rec.Plug().State != ledger.Attached {
			return nil
		}
		var errs []error
		var mended []string
		for _, i := range rec.Plug().Interfaces {
			changed, err := pn.kernel.Mend(ctx, i.Made)
			if changed {
				mended = append(mended, i.Name)
			}
			errs = append(errs, err)
		}
		if len(mended) > 0 {
			logr.FromContextOrDiscard(ctx).Info("host's side of a sandbox was put in order", "sandbox", containerID, "pod", rec.Pod, "interfaces", mended)
		}
		return errors.Join(errs...)
	})
}
