package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/machine"
)

// nodes knows how nodes plug ports, and which ports their machines have.
type nodes struct {
	// reader reads Nodes from a cache; nil before Setup.
	reader client.Reader
	known  *lookups
	// way of the nodes without a label; empty is Host.
	way       Way
	hostLabel string
}

// labelKuryr is Kuryr's label of a Node, and kuryrWays are its values.
const labelKuryr = "pod_vif"

var kuryrWays = map[string]Way{"neutron-vif": Host, "nested-vlan": Trunk, "nested-macvlan": Macvlan}

// wayOf returns the way of a node: that of its label, that of Kuryr's label, or the configured
// one. Errors: fault.ErrUnavailable.
func (n *nodes) wayOf(r *driver.Request) (Way, error) {
	if r.NodeLabels == nil {
		return "", fmt.Errorf("%w: the labels of Node %s are not known yet", fault.ErrUnavailable, r.NodeName)
	}
	if label, ok := r.NodeLabels[v1alpha1.LabelNeutronPort]; ok {
		if !slices.Contains([]Way{Host, Trunk, Macvlan}, Way(label)) {
			return "", fmt.Errorf("%w: label %s=%q of Node %s: must be %s, %s or %s", fault.ErrUnavailable, v1alpha1.LabelNeutronPort, label, r.NodeName, Host, Trunk, Macvlan)
		}
		return Way(label), nil
	}
	if label, ok := r.NodeLabels[labelKuryr]; ok {
		way, known := kuryrWays[label]
		if !known {
			return "", fmt.Errorf("%w: label %s=%q of Node %s is not served: label the Node %s=%s, %s or %s",
				fault.ErrUnavailable, labelKuryr, label, r.NodeName, v1alpha1.LabelNeutronPort, Host, Trunk, Macvlan)
		}
		return way, nil
	}
	return cmp.Or(n.way, Host), nil
}

// hostOf returns the host of a node's Neutron agent. Errors: fault.ErrUnavailable while the
// labels of the Node are not known.
func (n *nodes) hostOf(r *driver.Request) (string, error) {
	if n.hostLabel == "" {
		return r.NodeName, nil
	}
	if r.NodeLabels == nil {
		return "", fmt.Errorf("%w: the labels of Node %s are not known yet", fault.ErrUnavailable, r.NodeName)
	}
	if host := r.NodeLabels[n.hostLabel]; host != "" {
		return host, nil
	}
	return r.NodeName, nil
}

// machinePort returns the port of the machine of a node. It is remembered for a while. The
// Node object names the machine; the node's daemon cannot. Errors:
// fault.ErrUnavailable.
func (n *nodes) machinePort(ctx context.Context, c *cloud.Cloud, node string) (parent, error) {
	return lookup(n.known, machineKey(node), func() (parent, error) {
		object, all := &corev1.Node{}, &corev1.NodeList{}
		if n.reader == nil {
			return parent{}, fmt.Errorf("%w: Node %s is not known yet", fault.ErrUnavailable, node)
		}
		if err := errors.Join(n.reader.Get(ctx, client.ObjectKey{Name: node}, object), n.reader.List(ctx, all)); err != nil {
			return parent{}, fmt.Errorf("%w: Node %s: %w", fault.ErrUnavailable, node, err)
		}
		if rival := machine.Rival(object, all.Items); rival != "" {
			return parent{}, fmt.Errorf("%w: Node %s has the same machine or address as Node %s, which is older: its pods get no ports", fault.ErrUnavailable, node, rival)
		}
		p, err := machine.Port(ctx, c, machine.ID(object.Spec.ProviderID), machine.Addresses(object))
		if errors.Is(err, machine.ErrNoPort) {
			return parent{}, fmt.Errorf("%w: Node %s: %w", fault.ErrUnavailable, node, err)
		}
		return parentOf(p), translate(err)
	})
}
