package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/openstack/cloud"
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
	return neutron.New(neutron.Config{
		Cluster: o.Cluster, Namespace: h.cfg.LeaderElection.Namespace, Project: o.Project, HostLabel: o.HostLabel, Open: open,
		Default: neutron.Settings{
			Network: o.Ports.Network, Subnets: o.Ports.Subnets, Groups: o.Ports.SecurityGroups, QoSPolicy: o.Ports.QoSPolicy,
			PortSecurity: &o.Ports.PortSecurity, DNSName: &o.Ports.DNSName,
		},
		Connect: func(ctx context.Context) (*cloud.Cloud, error) {
			calls := prometheus.NewRegistry() // of this try: the next one has its own
			c, err := cloud.New(ctx, cloud.Config{File: o.CloudsFile, Cloud: o.Cloud, Cluster: o.Cluster, Registry: calls})
			if err == nil {
				err = metrics.Registry.Register(calls)
			}
			return c, err
		},
	}).Parts(), nil
}

// cloudOpenings parses the openings of the cloud to namespaces.
func cloudOpenings(all []config.CloudOpening) ([]neutron.Opening, error) {
	out := make([]neutron.Opening, 0, len(all))
	for _, o := range all {
		namespaces, err := metav1.LabelSelectorAsSelector(&o.NamespaceSelector)
		if err != nil {
			return nil, fmt.Errorf("openstack.open: namespaceSelector: %w", err)
		}
		out = append(out, neutron.Opening{Namespaces: namespaces, NoSecurity: o.PortSecurityOff, Names: map[string][]string{
			neutron.KindNetwork: o.Networks, neutron.KindSubnet: o.Subnets, neutron.KindGroup: o.SecurityGroups,
			neutron.KindQoS: o.QoSPolicies, neutron.KindProject: o.Projects,
		}})
	}
	return out, nil
}
