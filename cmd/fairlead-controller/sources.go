package main

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/controller"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/leader"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/source/npwg"
)

// further has the rules for the interfaces of pods, and the sources of those beside the
// default one.
type further struct {
	rules pod.Rules
	// selected and networks are nil unless the source npwg is enabled.
	selected func(*corev1.Pod, []pod.Selection) ([]pod.Interface, error)
	networks *npwg.Networks
}

// newFurther makes the sources that the configuration enables, in its order.
func newFurther(ctx context.Context, h *host, table driver.Table) (further, error) {
	cfg := h.cfg
	f := further{rules: pod.Rules{AddressOnly: cfg.DefaultNetwork.Binding == config.BindingAddressOnly, Network: defaultNetwork(cfg)}}
	flat, err := cfg.WhereaboutsFlatFile()
	if err != nil {
		return f, err
	}
	open, err := openings(cfg.Networks.Open)
	if err != nil {
		return f, err
	}
	for _, name := range cfg.MultiVIFSources {
		switch name {
		case config.SourceSubnets:
			f.rules.Sources = append(f.rules.Sources, pod.FromAdditionalPools)
		case config.SourceSRIOV:
			f.rules.Sources = append(f.rules.Sources, func(p *corev1.Pod) ([]pod.Interface, error) { return f.networks.Devices(p) })
		case config.SourceNPWG:
			f.rules.Attaches = func(p *corev1.Pod) bool { return attachedBy(ctx, h, p) == config.AttachedByFairlead }
			f.networks = npwg.New(npwg.Config{
				Attaches: f.rules.Attaches, Attaching: cfg.Networks.AttachedBy == config.AttachedByFairlead,
				Open: open, Isolated: cfg.Networks.Isolated, Shared: cfg.Networks.SharedNamespaces,
				Informers: h.mgr.GetCache(), Client: h.mgr.GetClient(), Warnings: controller.WarningsOf(h.mgr.GetClient()), FlatFile: flat,
				Drivers:       named(table, func(d driver.Parts) []string { return d.Networks.Types }),
				PluginDrivers: named(table, func(d driver.Parts) []string { return d.Networks.PluginTypes }), AnnotationDrivers: named(table, func(d driver.Parts) []string { return d.Networks.Annotations }),
				Namespace: cfg.LeaderElection.Namespace, DefaultPools: defaultPools(cfg), MaxPools: cfg.NetworkPoolsPerNamespace, Vacant: h.vacant,
			})
			f.rules.Sources, f.rules.Chosen, f.selected = append(f.rules.Sources, f.networks.Source), f.networks.Chosen, f.networks.Selected
		}
	}
	return f, nil
}

// attachedBy returns the program that attaches a pod to networks: that of its Node's
// label, otherwise that of the configuration. It reads the cache.
func attachedBy(ctx context.Context, h *host, p *corev1.Pod) string {
	node := &corev1.Node{}
	err := h.mgr.GetClient().Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node, client.UnsafeDisableDeepCopy)
	if by := node.Labels[v1alpha1.LabelAttachedBy]; err == nil && by != "" {
		return by
	}
	return h.cfg.Networks.AttachedBy
}

// openings parses the parts of nodes that are open to networks.
func openings(all []config.Opening) ([]npwg.Opening, error) {
	out := make([]npwg.Opening, 0, len(all))
	for _, o := range all {
		namespaces, err := metav1.LabelSelectorAsSelector(&o.NamespaceSelector)
		if err != nil {
			return nil, fmt.Errorf("networks.open: namespaceSelector: %w", err)
		}
		opening := npwg.Opening{Namespaces: namespaces, Parts: map[string][]string{
			nad.NeedBridge: o.Bridges, nad.NeedParent: o.Parents, nad.NeedDevice: o.Devices, nad.NeedPlugin: o.Plugins,
		}}
		for _, text := range o.Addresses {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("networks.open: addresses: %w", err)
			}
			opening.Addresses = append(opening.Addresses, p)
		}
		out = append(out, opening)
	}
	return out, nil
}

// retry calls again whenever a network changes, so that waiting pods are tried again.
func (f further) retry(ctx context.Context, again func()) error {
	if f.networks == nil {
		return nil
	}
	return f.networks.Watch(ctx, again)
}

// named returns the name of the driver for each type or annotation that drivers list.
func named(table driver.Table, list func(driver.Parts) []string) map[string]string {
	names := map[string]string{}
	for name, d := range table {
		for _, text := range list(d) {
			names[text] = name
		}
	}
	return names
}

func (f further) addTo(mgr manager.Manager, election *leader.Election) error {
	if f.networks == nil {
		return nil
	}
	return mgr.Add(run.Everywhere(func(ctx context.Context) error { return f.networks.Run(ctx, election.While) }))
}
