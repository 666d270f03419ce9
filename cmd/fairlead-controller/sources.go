package main

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/leader"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/source/npwg"
)

// further has the sources of interfaces beside the default one.
type further struct {
	sources []pod.Source
	// chosen and networks are nil unless the source npwg is enabled.
	chosen   func(pod.Selection) ([]pod.Interface, error)
	networks *npwg.Networks
}

// newFurther makes the sources that the configuration enables, in its order.
func newFurther(h *host, table driver.Table) (further, error) {
	var f further
	cfg := h.cfg
	flat, err := cfg.WhereaboutsFlatFile()
	if err != nil {
		return f, err
	}
	for _, name := range cfg.MultiVIFSources {
		if name == config.SourceNPWG {
			f.networks = npwg.New(npwg.Config{
				Informers: h.mgr.GetCache(), Client: h.mgr.GetClient(), FlatFile: flat, Drivers: networkTypes(table),
				Namespace: cfg.LeaderElection.Namespace, DefaultPools: defaultPools(cfg), MaxPools: cfg.NetworkPoolsPerNamespace, Vacant: h.vacant,
			})
			f.sources, f.chosen = append(f.sources, f.networks.Source), f.networks.Chosen
		}
	}
	return f, nil
}

// retry calls again whenever a network changes, so that waiting pods are tried again.
func (f further) retry(ctx context.Context, again func()) error {
	if f.networks == nil {
		return nil
	}
	return f.networks.Watch(ctx, again)
}

// networkTypes returns the name of the driver of each type of network.
func networkTypes(table driver.Table) map[string]string {
	types := map[string]string{}
	for name, d := range table {
		for _, t := range d.NetworkTypes {
			types[t] = name
		}
	}
	return types
}

func (f further) remembered() []func() map[string]int {
	if f.networks == nil {
		return nil
	}
	return []func() map[string]int{f.networks.Remembered}
}

func (f further) addTo(mgr manager.Manager, election *leader.Election) error {
	if f.networks == nil {
		return nil
	}
	return mgr.Add(run.Everywhere(func(ctx context.Context) error { return f.networks.Run(ctx, election.While) }))
}
