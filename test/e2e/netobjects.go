package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/netlab"
)

// network is a NetworkAttachmentDefinition.
type network struct {
	namespace, name string
	config          map[string]any
	// ownRange is the beginning of the addresses that pods choose themselves; empty if
	// Fairlead chooses them.
	ownRange string
	// brings is true if a pod gives itself its address, because the network has none.
	brings bool
}

func (o *network) key() string { return o.namespace + "/" + o.name }

// networks are the networks of the scenario: two namespaces, four kinds, every source of
// addresses. Each is on the wire of its name, except that the devices share one, and so do
// the delegated networks.
func networks() []*network {
	pool := func(name string) map[string]any {
		return map[string]any{"type": "fairlead-ipam", "pools": []string{name}}
	}
	all := []*network{
		{namespace: system, name: "apps", config: map[string]any{"type": "bridge", "bridge": "br-apps", "ipam": pool("apps")}},
		{namespace: namespace, name: "storage", config: map[string]any{"type": "macvlan", "master": "storage0", "ipam": pool("storage")}},
		{namespace: namespace, name: "logs", config: map[string]any{
			"type": "macvlan", "master": "logs0", "ipam": map[string]any{"type": "whereabouts", "range": "10.63.0.0/24"},
		}},
		{namespace: namespace, name: "fixed", ownRange: "10.64.0", config: map[string]any{
			"type": "bridge", "bridge": "br-fixed", "ipam": map[string]any{"type": "static"},
		}},
		{namespace: system, name: "plain", ownRange: "10.65.0", brings: true, config: map[string]any{"type": "bridge", "bridge": "br-plain"}},
		{namespace: system, name: "backup", config: map[string]any{"type": "macvlan", "master": "backup0", "mtu": 1400, "ipam": pool("backup")}},
		{namespace: namespace, name: "device-0", config: map[string]any{"type": "host-device", "device": "device0", "ipam": pool("devices")}},
		{namespace: namespace, name: "device-1", config: map[string]any{"type": "host-device", "device": "device1", "ipam": pool("devices")}},
		{namespace: namespace, name: "shared", config: map[string]any{"type": "macvlan", "master": "shared0", "ipam": pool("devices")}},
	}
	for i := range nodeCount {
		all = append(all, delegated(i))
	}
	return all
}

// delegated is the network of a node's pods that the reference plugins make, because
// host-local gives its addresses. Each node has a range of its own on the same wire, since
// host-local knows only its node.
func delegated(node int) *network {
	return &network{namespace: system, name: fmt.Sprintf("%snode-%d", delegatedPrefix, node+1), config: map[string]any{"plugins": []map[string]any{
		{"type": "bridge", "bridge": "br-foreign", "ipam": map[string]any{"type": "host-local", "ranges": [][]map[string]string{{{
			"subnet": "10.68.0.0/24", "rangeStart": fmt.Sprintf("10.68.0.%d", 10+100*node), "rangeEnd": fmt.Sprintf("10.68.0.%d", 109+100*node),
		}}}}},
		{"type": "tuning", "mtu": 1400},
	}}}
}

// delegatedPrefix begins the names of the delegated networks; the node's name follows.
const delegatedPrefix = "foreign-"

// delegatedPlugins are the programs of the delegated networks.
var delegatedPlugins = []string{"bridge", "host-local", "tuning"}

// referenceDir has the reference plugins, in the directory of the programs.
const referenceDir = "reference"

// installPlugins copies the programs of the delegated networks to the nodes, where a
// runtime has them.
func (w *testbed) installPlugins() error {
	for _, n := range w.nodes {
		for _, name := range delegatedPlugins {
			content, err := os.ReadFile(filepath.Join(w.programs(), referenceDir, name))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(n.binDir(), name), content, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *testbed) removePlugins() error {
	var errs []error
	for _, n := range w.nodes {
		for _, name := range delegatedPlugins {
			errs = append(errs, os.Remove(filepath.Join(n.binDir(), name)))
		}
	}
	return errors.Join(errs...)
}

// opened is networks.open of the controllers: what networks of the tenant's namespace may
// use.
func opened() []map[string]any {
	return []map[string]any{{
		"namespaceSelector": map[string]any{"matchLabels": map[string]string{corev1.LabelMetadataName: namespace}},
		"bridges":           []string{"br-fixed"},
		"parents":           []string{"storage0", "logs0", "shared0"},
		"devices":           []string{"device?"},
	}}
}

// wires are the wires of the networks.
func wires() []netlab.Wire {
	return []netlab.Wire{
		{Name: "apps", Bridge: "br-apps"},
		{Name: "storage", Links: []string{"storage0"}},
		{Name: "logs", Links: []string{"logs0"}},
		{Name: "fixed", Bridge: "br-fixed"},
		{Name: "plain", Bridge: "br-plain"},
		{Name: "backup", Links: []string{"backup0"}},
		{Name: "foreign", Bridge: "br-foreign"},
		{Name: "devices", Links: []string{"device0", "device1", "shared0"}},
	}
}

// networkPools are the pools of the networks. Those of the tenant's networks are open to
// them.
func networkPools() []client.Object {
	tenant := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	pool := func(name string, open *metav1.LabelSelector, ranges ...string) client.Object {
		return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
			Domain: name, Ranges: ranges, NetworkNamespaceSelector: open,
		}}
	}
	return []client.Object{
		pool("apps", nil, "10.61.0.0/24"), pool("storage", tenant, "10.62.0.0/24"),
		pool("backup", nil, "10.66.0.0/24", "fd00:66::/112"), pool("devices", tenant, "10.67.0.0/24"),
	}
}

func (o *network) object() client.Object {
	o.config["cniVersion"] = "1.0.0"
	raw, err := json.Marshal(o.config)
	if err != nil {
		panic(err) // of maps and strings
	}
	out := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": string(raw)}}}
	out.SetAPIVersion("k8s.cni.cncf.io/v1")
	out.SetKind("NetworkAttachmentDefinition")
	out.SetNamespace(o.namespace)
	out.SetName(o.name)
	return out
}

// installNetworks creates the networks and their pools, and has the controllers attach
// pods to them.
func (w *testbed) installNetworks(ctx context.Context) error {
	if err := client.IgnoreAlreadyExists(w.Create(ctx, cluster.NetworkDefinition())); err != nil {
		return fmt.Errorf("CRD of the networks: %w", err)
	}
	objects := networkPools()
	for _, o := range networks() {
		objects = append(objects, o.object())
	}
	for _, o := range objects {
		err := w.await(ctx, "the kind of networks", func(ctx context.Context) (string, error) {
			err := w.Create(ctx, o)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				return "it is not served yet", nil
			}
			return "", err
		})
		if err != nil {
			return err
		}
	}
	w.controllerSettings["multiVIFSources"] = []string{"npwg"}
	w.controllerSettings["networks"] = map[string]any{"attachedBy": "Fairlead", "open": opened()}
	for i := range w.controllers {
		if err := errors.Join(w.controllers[i].Stop(), w.startController(i)); err != nil {
			return err
		}
	}
	if err := w.installPlugins(); err != nil {
		return err
	}
	w.Say("%d networks of namespaces %s and %s; the controllers attach pods to them", len(networks()), system, namespace)
	return nil
}

// deleteNetworks deletes the networks, their pools and their plugins.
func (w *testbed) deleteNetworks(ctx context.Context) error {
	for _, o := range networks() {
		if err := w.Delete(ctx, o.object()); err != nil {
			return err
		}
	}
	for _, o := range networkPools() {
		if err := w.Delete(ctx, o); err != nil {
			return err
		}
	}
	return w.removePlugins()
}

// slots are the records of addresses in all blocks.
func (w *testbed) slots(ctx context.Context) ([]ipam.Slot, error) {
	list := &v1alpha1.IPBlockList{}
	if err := w.List(ctx, list); err != nil {
		return nil, err
	}
	var out []ipam.Slot
	for _, item := range list.Items {
		prefix, err := netip.ParsePrefix(item.Spec.CIDR)
		if err != nil {
			return nil, fmt.Errorf("IPBlock %s: %w", item.Name, err)
		}
		block := ipam.DecodeBlock(prefix, item.Spec.Node, item.Spec.Slots)
		for addr := prefix.Addr(); prefix.Contains(addr); addr = addr.Next() {
			if slot, ok := block.Slot(addr); ok {
				out = append(out, slot)
			}
		}
	}
	return out, nil
}
