package node

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev/link"
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

// astray tells whether a host end of a sandbox is down, or not on its bridge. Those
// that are missing cannot be mended.
func astray(rec *ledger.Record, there map[string]plug.HostLink) bool {
	return slices.ContainsFunc(rec.Interfaces(), func(i ledger.Interface) bool {
		l, ok := there[i.HostName]
		return ok && i.Binding.Bridge != nil && (!l.Up || l.Bridge != i.Binding.Bridge.Name)
	})
}

// repair sets the host ends of a sandbox up and puts them back on their bridge. A
// host end that is missing cannot come back: the pod has to.
func (pn *podNetwork) repair(ctx context.Context, containerID string) error {
	return pn.turns.Do(ctx, containerID, func(ctx context.Context) error {
		rec := pn.ledger.Get(containerID)
		if rec == nil || rec.Plug() == nil || rec.Plug().State != ledger.Attached {
			return nil
		}
		var errs []error
		var mended []string
		for _, i := range rec.Plug().Interfaces {
			if i.Binding.Bridge == nil {
				continue
			}
			bridge := i.Binding.Bridge.Name
			is, err := pn.host.LinkState(i.HostName)
			if errors.Is(err, link.ErrNoLink) || err == nil && is.Up && is.Master == bridge {
				continue
			}
			if err := pn.kernel.MendHostEnd(i.HostName, bridge); err != nil {
				errs = append(errs, err)
				continue
			}
			mended = append(mended, i.HostName)
		}
		if len(mended) > 0 {
			logr.FromContextOrDiscard(ctx).Info("host's side of a sandbox was put in order", "sandbox", containerID, "pod", rec.Pod, "links", mended)
		}
		return errors.Join(errs...)
	})
}
