package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// Run compares the networks in the cloud with the records, at once and after each interval,
// until ctx ends.
func (n *Networks) Run(ctx context.Context) error {
	for {
		if err := n.compare(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "networks of namespaces are not compared with their records", "again", n.cfg.Interval)
		}
		if !run.Sleep(ctx, n.cfg.Interval) {
			return nil
		}
	}
}

// compare creates the records of networks that have none: the finalizer was taken off by
// hand, or a create whose reply was lost ended after everything was removed. Kubernetes
// deletes such a record if the namespace is gone, and the network is removed as any other.
//
// Only networks in the projects of the configuration count: the users of another project may
// tag their networks as this cluster's.
func (n *Networks) compare(ctx context.Context) error {
	if n.cfg.Served == nil {
		return nil // a record needs a router and subnet pools
	}
	c, err := n.cfg.Connect(ctx)
	if err != nil {
		return nil //nolint:nilerr // the driver reports it
	}
	projects := []string{c.Project()}
	if p := n.cfg.Project; p != "" && p != c.Project() {
		projects = append(projects, p)
	}
	var errs []error
	for _, project := range projects {
		found, err := c.NetworksOf(ctx, project)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The records are read after the networks: a record is there before its network.
		records := &v1alpha1.NamespaceNetworkList{}
		if err := n.cfg.Live.List(ctx, records); err != nil {
			return fmt.Errorf("list NamespaceNetworks: %w", err)
		}
		for _, f := range found {
			namespace, uid, ok := readName(n.cfg.Cluster, f.Name)
			if !ok || slices.ContainsFunc(records.Items, func(o v1alpha1.NamespaceNetwork) bool { return o.Name == recordName(namespace, uid) }) {
				continue
			}
			log.FromContext(ctx).Info("a network of a namespace has no NamespaceNetwork: it gets one, with which it is removed if the namespace is gone", "network", f.ID, "namespace", namespace)
			errs = append(errs, n.create(ctx, namespace, uid, project))
		}
	}
	return errors.Join(errs...)
}
