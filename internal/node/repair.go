package node

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
)

// repairer repairs the host's side of sandboxes after a CHECK or the sweep has found a
// difference. The sweep looks for differences because runtimes need not send a CHECK, and
// containerd does not.
type repairer struct {
	network *podNetwork
	queue   workqueue.TypedRateLimitingInterface[string]
}

// Run works until ctx ends.
func (m *repairer) Run(ctx context.Context) error {
	queue.Run(ctx, m.queue, 1, func(ctx context.Context, containerID string) error {
		err := m.network.repair(ctx, containerID)
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "cannot repair the host's side of a sandbox, will be tried again", "sandbox", containerID)
		}
		return err
	})
	return nil
}

// opened queues the sandboxes whose host ends in Open vSwitch may not be shut any more,
// because a chain or the table that shuts them was deleted, as by "nft flush ruleset".
func (pn *podNetwork) opened(c host.RuleChange) {
	pn.host.RulesChanged(c)
	if c.Table != "" && (c.Table != nft.ShutTable || !c.Deleted) {
		return
	}
	open := func(i ledger.Interface) bool {
		return i.Made.Kind == plug.KindOVS && (c.Chain == "" || c.Chain == i.Made.HostLink)
	}
	for _, rec := range pn.ledger.All() {
		if add := rec.Plugged(); add != nil && slices.ContainsFunc(add.Interfaces, open) {
			pn.repairer.queue.Add(rec.ContainerID)
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
func (pn *podNetwork) repair(ctx context.Context, containerID string) error {
	return pn.turns.Do(ctx, containerID, func(ctx context.Context) error {
		rec := pn.ledger.Get(containerID)
		add := rec.Plugged()
		if add == nil {
			return nil
		}
		var errs []error
		var repaired []string
		for _, i := range add.Interfaces {
			if i.State != "" {
				continue // it is being plugged or unplugged
			}
			changed, err := pn.kernel.Repair(ctx, i.Made)
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
