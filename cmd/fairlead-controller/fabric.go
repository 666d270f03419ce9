package main

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/fabric"
)

// setUpFabric registers the fabric, or without it in the configuration what lets deleted
// nodes go that had one.
func setUpFabric(h *host, term driver.Term) error {
	o := h.cfg.OpenStack
	events := h.mgr.GetEventRecorder("fairlead-controller")
	if o.Fabric == nil {
		return (&fabric.Forgetter{Client: h.mgr.GetClient(), Events: events}).SetupWithManager(h.mgr, term)
	}
	m, err := fabric.NewMetrics(metrics.Registry)
	if err != nil {
		return err
	}
	return fabric.New(fabric.Config{
		Client: h.mgr.GetClient(), Events: events, Metrics: m, Cluster: o.Cluster,
		PerBlock: o.Fabric.Pairs == config.PairsPerBlock, Router: o.Fabric.Router, Group: o.Fabric.SecurityGroup, Remove: o.Fabric.Remove,
		Connect: func(ctx context.Context) (fabric.Calls, error) {
			c, err := h.connect(ctx)
			if err != nil {
				return fabric.Calls{}, err
			}
			return fabric.Calls{Ports: c, Routers: c.Routers, Groups: c.Groups, Rules: c.Groups}, nil
		},
	}).SetupWithManager(h.mgr, term)
}
