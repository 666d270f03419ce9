package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/wiring"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/openstack/fabric"
)

// Way is how a port is made ready for the pods of a node.
type Way string

// The ways.
const (
	// Host binds the port on the node, which runs the OVN controller or the OVS agent.
	Host Way = "host"
	// Trunk makes the port a subport of the trunk of the node's machine.
	Trunk Way = "trunk"
	// Macvlan makes the addresses of the port allowed address pairs of the machine's port.
	Macvlan Way = "macvlan"
)

// parent is the port of a node's machine.
type parent struct{ ID, MAC, NetworkID string }

func parentOf(p cloud.Port) parent { return parent{p.ID, strings.ToLower(p.MAC), p.NetworkID} }

// way makes ports ready for the pods of a node. at is the port of the node's machine; it is
// empty for Host.
type way interface {
	// serves returns nil if the way has what a request asks for. Nothing is made before.
	// Errors: fault.ErrInvalid.
	serves(r *driver.Request, what target, w wiring.Network) error
	// attach makes a port ready. It does nothing for a port that is ready. vlan is that of a
	// subport. Errors: those of the cloud and of package nested.
	attach(ctx context.Context, at parent, p cloud.Port) (vlan int, err error)
	// binding returns the binding of a port that is ready.
	binding(p cloud.Port, at parent, vlan int) v1alpha1.Binding
	// detach undoes attach, before the port is deleted. at is the ID of the machine's port.
	// Errors: those of the cloud.
	detach(ctx context.Context, at string, p cloud.Port) error
}

// integrationBridge is the bridge of ports whose binding names none, as on older releases.
const integrationBridge = "br-int"

// bound is the way Host: Neutron binds the port when it is made.
type bound struct{}

func (bound) serves(*driver.Request, target, wiring.Network) error { return nil }

func (bound) attach(context.Context, parent, cloud.Port) (int, error) { return 0, nil }

func (bound) binding(p cloud.Port, _ parent, _ int) v1alpha1.Binding {
	return v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: cmp.Or(p.Bridge, integrationBridge), PortID: p.ID}}
}

func (bound) detach(context.Context, string, cloud.Port) error { return nil }

// maxVLAN is the last VLAN of a trunk.
const maxVLAN = 4094

// subport is the way Trunk.
type subport struct{ *Driver }

func (subport) serves(*driver.Request, target, wiring.Network) error { return nil }

func (s subport) attach(ctx context.Context, at parent, p cloud.Port) (int, error) {
	return s.trunks.Add(ctx, at.ID, p.ID)
}

func (subport) binding(p cloud.Port, at parent, vlan int) v1alpha1.Binding {
	return v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{ParentMAC: at.MAC, PortID: p.ID, ID: int32(vlan)}} //nolint:gosec // 1 to 4094
}

func (s subport) detach(ctx context.Context, at string, p cloud.Port) error {
	return s.trunks.Remove(ctx, at, p.ID)
}

// pair is the way Macvlan. Neutron reserves the addresses by the pod's port, which nothing
// binds; the port of the machine carries the packets.
type pair struct{ *Driver }

// serves refuses all that Neutron would enforce at the pod's port.
func (pair) serves(r *driver.Request, what target, w wiring.Network) error {
	switch {
	case what.at.NetworkID != w.ID:
		return fmt.Errorf("%w: node %s has pods by address pairs (%s), on the network of its own port, %s: network %s is another: choose that one, or label the Node %s=%s",
			fault.ErrInvalid, r.NodeName, Macvlan, what.at.NetworkID, w.ID, v1alpha1.LabelNeutronPort, Trunk)
	case what.Asked:
		return fmt.Errorf("%w: node %s has pods by address pairs (%s), where security groups, port security and QoS policy are those of the node: remove them, or have the pod on a node of another kind", fault.ErrInvalid, r.NodeName, Macvlan)
	case r.MAC != "":
		return fmt.Errorf("%w: the pod asks for MAC %s: on node %s, which has pods by address pairs (%s), Neutron cannot reserve it: remove it", fault.ErrInvalid, r.MAC, r.NodeName, Macvlan)
	}
	return nil
}

func (p pair) attach(ctx context.Context, at parent, port cloud.Port) (int, error) {
	return 0, p.pairs.Add(ctx, at.ID, pairsOf(port))
}

func (pair) binding(p cloud.Port, at parent, _ int) v1alpha1.Binding {
	return v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{ParentMAC: at.MAC, PortID: p.ID, Mode: "bridge"}}
}

func (p pair) detach(ctx context.Context, at string, port cloud.Port) error {
	return p.pairs.Remove(ctx, at, pairsOf(port))
}

// pairsOf returns the allowed address pairs for the addresses of a pod's port.
func pairsOf(p cloud.Port) []cloud.Pair {
	var out []cloud.Pair
	for _, a := range p.Addresses {
		out = append(out, cloud.Pair{Prefix: netip.PrefixFrom(a.Addr, a.Addr.BitLen()), MAC: pairMAC(p.MAC)})
	}
	return out
}

// pairMAC returns the MAC of a pod whose addresses are pairs. It differs from that of the
// pod's port in one bit: OVN delivers a MAC that two ports have to either of them, and the
// pod's port is bound nowhere.
func pairMAC(mac string) string {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) == 0 {
		return strings.ToLower(mac)
	}
	hw[0] ^= 0x08
	return hw.String()
}

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
	return cmp.Or(r.NodeLabels[n.hostLabel], r.NodeName), nil
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
		if rival := fabric.Rival(object, all.Items); rival != "" {
			return parent{}, fmt.Errorf("%w: Node %s has the same machine or address as Node %s, which is older: its pods get no ports", fault.ErrUnavailable, node, rival)
		}
		p, err := fabric.MachinePort(ctx, c, fabric.MachineID(object.Spec.ProviderID), fabric.NodeAddresses(object))
		if errors.Is(err, fabric.ErrNoPort) {
			return parent{}, fmt.Errorf("%w: Node %s: %w", fault.ErrUnavailable, node, err)
		}
		return parentOf(p), translate(err)
	})
}
