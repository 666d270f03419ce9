package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/fixed"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/driver/native/upkeep"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/pod"
)

// drivers is the table of constructors of drivers, by the name in networks and the
// configuration.
var drivers = map[string]func(ctx context.Context, h *host) (driver.Parts, error){
	native.Name: newNative,
	fixed.Name:  func(context.Context, *host) (driver.Parts, error) { return fixed.Parts(), nil },
	// Without OpenStack in the configuration there is no driver neutron.
	neutron.Name: newNeutron,
}

// driverNames returns the names of all drivers, sorted.
func driverNames() []string { return slices.Sorted(maps.Keys(drivers)) }

// host is the environment that the constructors of drivers use.
type host struct {
	cfg   config.Controller
	mgr   manager.Manager
	turns controller.Turns
	// connect returns the connection to the cloud, which it makes if there is none.
	connect func(ctx context.Context) (*cloud.Cloud, error)
	// listed reports whether all PodAttachments have been read that existed at the start.
	listed func() bool
	// leads reports whether this process leads.
	leads func() bool
	// waiting is gc.Config.Waiting. The driver of OpenStack sets it.
	waiting func(driverName string, refs []driver.Ref)
	// vacant reports whether no address of an IPPool is taken, kept or cooling down;
	// again is the time until the next check. The native driver sets it.
	vacant func(ctx context.Context, o *v1alpha1.IPPool) (vacant bool, again time.Duration, err error)
}

// newDrivers makes all drivers of the configuration, and measures their calls.
func newDrivers(ctx context.Context, h *host, m *driver.Metrics) (driver.Table, error) {
	table := driver.Table{}
	for name, make := range drivers {
		d, err := make(ctx, h)
		if err != nil {
			return nil, fmt.Errorf("driver %s: %w", name, err)
		}
		if d.Driver == nil {
			continue
		}
		d.Driver = m.Wrap(name, d.Driver)
		table[name] = d
	}
	return table, nil
}

// setUp registers the drivers' watches and loops with the manager.
func setUp(ctx context.Context, table driver.Table, mgr manager.Manager, term driver.Term) error {
	var errs []error
	for name, d := range table {
		if d.Run.Setup == nil {
			continue
		}
		if err := d.Run.Setup(ctx, mgr, term); err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// newNative makes the driver of Fairlead's own pools.
func newNative(ctx context.Context, h *host) (driver.Parts, error) {
	served, wrong := h.cfg.Nodes()
	underlay, err := h.cfg.Underlay()
	if err := errors.Join(wrong, err); err != nil {
		return driver.Parts{}, err
	}
	a, err := upkeep.Assemble(ctx, h.mgr, upkeep.Options{
		Pools: h.cfg.DefaultNetwork.Pools, Namespace: h.cfg.LeaderElection.Namespace,
		Nodes: served, DefaultNetwork: whoseDefault(h.cfg), Underlay: underlay, AuditInterval: h.cfg.GCInterval.Duration,
		Turn: h.turns.Wait, Listed: h.listed, Leads: h.leads, Registry: metrics.Registry,
	})
	if err != nil {
		return driver.Parts{}, err
	}
	h.vacant = a.Vacancy.Vacant
	return a.Parts, nil
}

// whoseDefault returns the defaultNetwork of NodeNetworks: v1alpha1.DefaultNetworkOther
// if another CNI plugin serves it, the NetworkAttachmentDefinition whose plugins do, or empty.
func whoseDefault(cfg config.Controller) string {
	if defaultDriver(cfg) == "" {
		return v1alpha1.DefaultNetworkOther
	}
	return cfg.DefaultNetwork.Network
}

// defaultDriver returns the driver of the default network; empty if Fairlead does not
// serve it.
func defaultDriver(cfg config.Controller) string {
	if cfg.DefaultNetwork.Driver == config.DriverNone {
		return ""
	}
	return cfg.DefaultNetwork.Driver
}

// defaultNetwork returns the NetworkAttachmentDefinition of the default interfaces; without
// a Name if there is none.
func defaultNetwork(cfg config.Controller) pod.Selection {
	namespace, name, _ := strings.Cut(cfg.DefaultNetwork.Network, "/")
	return pod.Selection{Namespace: namespace, Name: name, Interface: v1alpha1.DefaultInterface}
}

// defaultPools returns the pools of the default network; nil if Fairlead does not serve
// it.
func defaultPools(cfg config.Controller) []string {
	if defaultDriver(cfg) == "" {
		return nil
	}
	return cfg.DefaultNetwork.Pools
}
