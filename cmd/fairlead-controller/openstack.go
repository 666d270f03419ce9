package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/driver/neutron/report"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/namespace"
	"fairlead.dev/fairlead/internal/run"
)

// newNeutron makes the driver of ports of OpenStack; no parts if the configuration has no
// OpenStack. The driver connects in the background.
func newNeutron(_ context.Context, h *host) (driver.Parts, error) {
	o := h.cfg.OpenStack
	if o.Cluster == "" {
		return driver.Parts{}, nil
	}
	open, err := cloudOpenings(o.Open)
	if err != nil {
		return driver.Parts{}, err
	}
	byNode, err := nodeSubnets(o.Ports.NodeSubnets)
	if err != nil {
		return driver.Parts{}, err
	}
	pools, err := newPortPools(h)
	if err != nil {
		return driver.Parts{}, err
	}
	own, err := newNamespaceNetworks(h)
	if err != nil {
		return driver.Parts{}, err
	}
	var reporter *report.Reporter
	d := neutron.New(neutron.Config{
		Pools:   pools,
		Cluster: o.Cluster, HostLabel: o.HostLabel, Way: neutron.Way(o.NeutronPort),
		Choice: choice.Config{
			Namespace: h.cfg.LeaderElection.Namespace, Project: o.Project, Open: open, NodeSubnets: byNode,
			Default: choice.Settings{
				Network: o.Ports.Network, Subnets: o.Ports.Subnets, Groups: o.Ports.SecurityGroups, QoSPolicy: o.Ports.QoSPolicy,
				PortSecurity: &o.Ports.PortSecurity, DNSName: &o.Ports.DNSName,
			},
		},
		Namespaces: own, Machines: native.Machines{Cache: h.mgr.GetClient(), Live: h.mgr.GetAPIReader()},
		Connect: func(ctx context.Context) (*cloud.Cloud, error) {
			c, err := h.connect(ctx)
			reporter.Connected(c, err)
			return c, err
		},
	})
	own.OnRemoval(d.FreePools)
	if reporter, err = newReporter(h, d); err != nil {
		return driver.Parts{}, err
	}
	h.waiting = func(name string, refs []driver.Ref) {
		if name == neutron.Name {
			reporter.Waiting(refs)
		}
	}
	parts := d.Parts()
	connect := parts.Setup
	parts.Setup = func(ctx context.Context, mgr manager.Manager, term driver.Term) error {
		return errors.Join(connect(ctx, mgr, term), own.SetupWithManager(mgr, term), mgr.Add(run.Everywhere(term.EachTerm(reporter.Run))))
	}
	return parts, nil
}

// newReporter makes the part that shows people how OpenStack serves the cluster.
func newReporter(h *host, d *neutron.Driver) (*report.Reporter, error) {
	o, network := h.cfg.OpenStack, ""
	if h.cfg.DefaultNetwork.Driver == neutron.Name {
		network = o.Ports.Network
	}
	return report.New(report.Config{
		Cluster: o.Cluster, DeviceOwner: neutron.DeviceOwner, Judge: d.Judge, Network: network,
		Host: func(ctx context.Context) (string, error) {
			var nodes corev1.NodeList
			if err := h.mgr.GetClient().List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil || len(nodes.Items) == 0 {
				return "", err
			}
			first := slices.MinFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
			return cmp.Or(first.Labels[o.HostLabel], first.Name), nil
		},
		Client: h.mgr.GetClient(), Live: h.mgr.GetAPIReader(), Events: h.mgr.GetEventRecorder("fairlead-controller"),
		Registry: metrics.Registry, Interval: h.cfg.GCInterval.Duration,
	})
}

// newNamespaceNetworks makes the networks of namespaces. Without them in the configuration,
// those that exist are still removed with their namespaces.
func newNamespaceNetworks(h *host) (*namespace.Networks, error) {
	o := h.cfg.OpenStack
	cfg := namespace.Config{
		Client: h.mgr.GetClient(), Live: h.mgr.GetAPIReader(), Connect: h.connect, Events: h.mgr.GetEventRecorder("fairlead-controller"),
		Cluster: o.Cluster, Project: o.Project, Interval: h.cfg.GCInterval.Duration,
	}
	if n := o.NamespaceNetworks; n != nil {
		served, err := metav1.LabelSelectorAsSelector(&n.NamespaceSelector)
		if err != nil {
			return nil, fmt.Errorf("openstack.namespaceNetworks: namespaceSelector: %w", err)
		}
		cfg.Served, cfg.Asked, cfg.SubnetPools, cfg.Router = served, n.OnRequest, n.SubnetPools, n.Router
	}
	return namespace.New(cfg), nil
}

// connectOnce returns a function that connects to the cloud, and returns the same connection
// from then on: all that use the cloud share its token and its pauses.
func connectOnce(o config.OpenStack) func(ctx context.Context) (*cloud.Cloud, error) {
	var connected *cloud.Cloud
	turn := make(chan struct{}, 1)
	return func(ctx context.Context) (*cloud.Cloud, error) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if connected != nil {
			return connected, nil
		}
		calls := prometheus.NewRegistry() // of this try: the next one has its own
		c, err := cloud.New(ctx, cloud.Config{File: o.CloudsFile, Cloud: o.Cloud, Cluster: o.Cluster, Registry: calls})
		if err != nil {
			return nil, err
		}
		if err := metrics.Registry.Register(calls); err != nil {
			return nil, err
		}
		connected = c
		return c, nil
	}
}

// newPortPools returns the configuration of pools of ready ports, also if they are off: they
// may have been on before.
func newPortPools(h *host) (*pool.Config, error) {
	var marks pool.Marks
	if p := h.cfg.OpenStack.Ports.Pools; p.Low > 0 {
		marks = pool.Marks{Low: p.Low, High: p.High, Batch: p.Batch}
	}
	m, err := pool.NewMetrics(metrics.Registry, h.leads)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of pools of ports: %w", err)
	}
	kube := pool.Kube{Client: h.mgr.GetClient(), Live: h.mgr.GetAPIReader(), Listed: h.listed, Driver: neutron.Name, Events: h.mgr.GetEventRecorder("fairlead-controller")}
	return &pool.Config{
		API: kube, Cluster: kube, Marks: marks, Grace: h.cfg.NodeGrace.Duration, Metrics: m,
	}, nil
}

// cloudOpenings parses the openings of the cloud to namespaces.
func cloudOpenings(all []config.CloudOpening) ([]choice.Opening, error) {
	out := make([]choice.Opening, 0, len(all))
	for _, o := range all {
		namespaces, err := metav1.LabelSelectorAsSelector(&o.NamespaceSelector)
		if err != nil {
			return nil, fmt.Errorf("openstack.open: namespaceSelector: %w", err)
		}
		out = append(out, choice.Opening{Namespaces: namespaces, NoSecurity: o.PortSecurityOff, Names: map[string][]string{
			choice.KindNetwork: o.Networks, choice.KindSubnet: o.Subnets, choice.KindGroup: o.SecurityGroups,
			choice.KindQoS: o.QoSPolicies, choice.KindProject: o.Projects,
		}})
	}
	return out, nil
}

// nodeSubnets parses the subnets of nodes.
func nodeSubnets(all []config.NodeSubnets) ([]choice.NodeSubnets, error) {
	var out []choice.NodeSubnets
	for _, n := range all {
		nodes, err := metav1.LabelSelectorAsSelector(&n.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("openstack.ports.nodeSubnets: nodeSelector: %w", err)
		}
		out = append(out, choice.NodeSubnets{Nodes: nodes, Subnets: n.Subnets})
	}
	return out, nil
}
