package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// announce writes the network configuration for the runtime as soon as an ADD can be
// served, and verifies it after every change in its directory and every background.SweepInterval: the
// kernel does not announce everything, and an ADD may be impossible at the time of a
// change. The configuration stays when the daemon
// ends: without it a runtime cannot stop pods. If only plugins for addresses are
// installed, announce writes none: Fairlead would take the place of the network that
// plugs the pods.
func (pn *Network) announce(ctx context.Context) error {
	i := pn.install
	if i == nil {
		return nil
	}
	if !slices.Contains(i.Names, install.PluginName) {
		pn.host.SetAnnounced(metav1.Condition{}) // an earlier configuration may have announced it
		return nil
	}
	select {
	case <-pn.registry.WhenSynced():
	case <-ctx.Done():
		return nil
	}
	_, err := pn.host.Await(ctx)
	if err = errors.Join(err, pn.firewall.AwaitReady(ctx)); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	install.Keep(ctx, pn.confDir, background.SweepInterval, func() bool {
		if pn.canServe() != nil {
			return false // a runtime that has no configuration sends no ADD meanwhile
		}
		announced, written := install.Announce(ctx, i.ConfDir, pn.socket)
		pn.host.SetAnnounced(announced)
		return written
	})
	return nil
}

// canServe returns nil if an ADD can be served. Errors: fault.ErrNotServing, or
// fault.ErrImpaired if the pods on the node have lost their network.
func (pn *Network) canServe() error {
	if !pn.registry.IsSynced() {
		return fault.Errorf(fault.ErrNotServing, "node %s has not read its PodAttachments from the API server yet", pn.node)
	}
	if err := pn.host.Ready(); err != nil {
		return fault.Errorf(fault.ErrNotServing, "node %s: %w", pn.node, err)
	}
	if err := pn.firewall.Ready(); err != nil {
		return fault.Errorf(fault.ErrNotServing, "node %s: the packet filter is not in place: %w", pn.node, err)
	}
	if err := pn.host.Lost(); err != nil {
		kind := fault.ErrNotServing
		if pn.ledger.Count() > 0 {
			kind = fault.ErrImpaired
		}
		return fault.Errorf(kind, "node %s: %w", pn.node, err)
	}
	if s := pn.defaultStatus.Load(); s != nil && s.err != nil {
		return fmt.Errorf("node %s: %w", pn.node, s.err)
	}
	return nil
}

// pluginStatus is the result of a STATUS of the plugins of the default network.
type pluginStatus struct {
	list v1alpha1.PluginList
	err  error
}

// pluginStatusEvery is the time between two executions of STATUS.
const pluginStatusEvery = 15 * time.Second

// keepPluginStatus executes STATUS of the plugins of the default network, if it is
// delegated, so that the answer to the runtime does not wait for them.
func (pn *Network) keepPluginStatus(ctx context.Context) error {
	if pn.plugins == nil {
		return nil
	}
	tick := time.NewTicker(pluginStatusEvery)
	defer tick.Stop()
	for {
		if list := pn.defaultPlugins(); list == nil {
			pn.defaultStatus.Store(nil)
		} else if err := pn.plugins.Status(ctx, *list); ctx.Err() == nil {
			pn.defaultStatus.Store(&pluginStatus{list: *list, err: err})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// defaultPlugins returns the plugins of the cluster's default network, as the sandbox has them that
// was plugged with it last, nil if Fairlead makes the default interface. A network that a pod chose
// is no other pod's. Without a sandbox they are those of the last STATUS.
func (pn *Network) defaultPlugins() *v1alpha1.PluginList {
	network := pn.host.DefaultNetwork()
	if network == "" || network == v1alpha1.DefaultNetworkOther {
		return nil
	}
	var last *ledger.Add
	for _, rec := range pn.ledger.All() {
		add := rec.Attached()
		if add == nil || len(add.Interfaces) == 0 || add.Interfaces[0].Network != network || add.Interfaces[0].Binding.Delegate == nil {
			continue
		}
		if last == nil || add.AttachedAt.After(last.AttachedAt) {
			last = add
		}
	}
	if last != nil {
		return last.Interfaces[0].Binding.Delegate
	}
	if s := pn.defaultStatus.Load(); s != nil {
		return &s.list
	}
	return nil
}

// keepHealth keeps the answer to STATUS current.
func (pn *Network) keepHealth(ctx context.Context) error {
	synced := pn.registry.WhenSynced()
	pn.health.Run(ctx, func() <-chan struct{} {
		select {
		case <-synced: // once
			host, firewall := pn.host.Changes(), pn.firewall.Changes() // before the looks: no change is missed
			if pn.host.Ready() == nil && pn.firewall.Ready() != nil {
				return firewall
			}
			return host
		default:
			return synced
		}
	})
	return nil
}
