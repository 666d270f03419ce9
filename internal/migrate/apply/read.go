// Package apply executes a migration on a cluster: it stops whereabouts from writing,
// reads the cluster, and writes the plan of package migrate. Every step may be
// interrupted and repeated.
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/migrate"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// ErrNothing means that the cluster has neither objects of whereabouts nor networks that
// use it.
var ErrNothing = errors.New("nothing of whereabouts is in this cluster")

// Foreign kinds, which are read, and partly written, without Go types.
var (
	poolKind        = kind{schema.GroupVersionKind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Kind: "IPPool"}, "ippools"}
	reservationKind = kind{schema.GroupVersionKind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Kind: "OverlappingRangeIPReservation"}, "overlappingrangeipreservations"}
	slicePoolKind   = kind{schema.GroupVersionKind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Kind: "NodeSlicePool"}, "nodeslicepools"}
	networkKind     = kind{nad.Kind, "network-attachment-definitions"}
)

// AddKinds adds these kinds to a mapper that does not ask the server.
func AddKinds(mapper *meta.DefaultRESTMapper) {
	for _, k := range []kind{poolKind, reservationKind, slicePoolKind, networkKind} {
		resource := k.gvk.GroupVersion().WithResource(k.resource)
		mapper.AddSpecific(k.gvk, resource, resource, meta.RESTScopeNamespace)
	}
}

type kind struct {
	gvk      schema.GroupVersionKind
	resource string // in the plural
}

// object returns an object of the kind without content.
func (k kind) object(namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(k.gvk)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// list reads all objects of the kind; none if the cluster does not know the kind.
func (k kind) list(ctx context.Context, api client.Reader) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.gvk)
	err := api.List(ctx, list)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", k.gvk.Kind, k.gvk.Group, err)
	}
	return list.Items, nil
}

// decode converts an object into a struct.
func decode[T any](o *unstructured.Unstructured) (T, error) {
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &out); err != nil {
		return out, fmt.Errorf("%s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	return out, nil
}

// Content of objects of whereabouts and of Multus.
type (
	poolObject struct {
		Spec struct {
			Range       string                        `json:"range"`
			Allocations map[string]migrate.Allocation `json:"allocations"`
		} `json:"spec"`
	}
	reservationObject struct {
		Spec struct {
			PodRef    string `json:"podref"`
			Interface string `json:"ifname,omitempty"`
		} `json:"spec"`
	}
	slicePoolObject struct {
		Spec struct {
			Range string `json:"range"`
		} `json:"spec"`
		Status struct {
			Allocations []struct {
				Node  string `json:"nodeName"`
				Range string `json:"sliceRange"`
			} `json:"allocations"`
		} `json:"status"`
	}
	networkObject struct {
		Spec struct {
			Config string `json:"config"`
		} `json:"spec"`
	}
)

// Cluster is the state of a cluster and its origin.
type Cluster struct {
	migrate.State
	// Namespace of whereabouts' objects.
	Namespace string
	// Warnings about networks, each with its name.
	Warnings []string
}

// Read reads the objects that a migration needs. namespace is the namespace of
// whereabouts' objects; if empty, it is the only namespace that has such objects, or
// kube-system if none has. flat is the content of the nodes' flat file
// (whereabouts.conf), which may be empty. Errors: ErrNothing if there is neither an
// object of whereabouts nor a network that uses it; another error if namespace is empty
// and several namespaces have such objects.
func Read(ctx context.Context, api client.Reader, namespace string, flat []byte) (*Cluster, error) {
	c := &Cluster{State: migrate.State{DomainOf: whereabouts.Domain, BootIDs: map[string]string{}, NodeUIDs: map[string]types.UID{}, NamespaceLabels: map[string]map[string]string{}}}
	if err := c.readWhereabouts(ctx, api, namespace); err != nil {
		return nil, err
	}
	if err := c.readNetworks(ctx, api, flat); err != nil {
		return nil, err
	}
	if len(c.Pools)+len(c.Reservations)+len(c.Networks) == 0 {
		return nil, ErrNothing
	}
	if err := c.readFairlead(ctx, api); err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	c.Pods = pods.Items
	var namespaces corev1.NamespaceList
	if err := api.List(ctx, &namespaces); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range namespaces.Items {
		c.NamespaceLabels[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		c.BootIDs[nodes.Items[i].Name] = nodes.Items[i].Status.NodeInfo.BootID
		c.NodeUIDs[nodes.Items[i].Name] = nodes.Items[i].UID
	}
	return c, nil
}

// readWhereabouts reads the objects of whereabouts, all of one namespace.
func (c *Cluster) readWhereabouts(ctx context.Context, api client.Reader, namespace string) error {
	pools, err := poolKind.list(ctx, api)
	if err != nil {
		return err
	}
	reservations, err := reservationKind.list(ctx, api)
	if err != nil {
		return err
	}
	slicePools, err := slicePoolKind.list(ctx, api)
	if err != nil {
		return err
	}
	if c.Namespace, err = namespaceOf(namespace, slices.Concat(pools, reservations, slicePools)); err != nil {
		return err
	}
	err = each(pools, c.Namespace, func(name string, o poolObject) {
		c.Pools = append(c.Pools, migrate.Pool{Namespace: c.Namespace, Name: name, Range: o.Spec.Range, Allocations: o.Spec.Allocations})
	})
	if err != nil {
		return err
	}
	err = each(reservations, c.Namespace, func(name string, o reservationObject) {
		c.Reservations = append(c.Reservations, migrate.Reservation{Namespace: c.Namespace, Name: name, PodRef: o.Spec.PodRef, Interface: o.Spec.Interface})
	})
	if err != nil {
		return err
	}
	return each(slicePools, c.Namespace, func(name string, o slicePoolObject) {
		pool := migrate.SlicePool{Name: name, Range: o.Spec.Range, Slices: map[string]string{}}
		for _, s := range o.Status.Allocations {
			if s.Node != "" {
				pool.Slices[s.Node] = s.Range
			}
		}
		c.Slices = append(c.Slices, pool)
	})
}

// each decodes the objects of a namespace and calls take for each of them.
func each[T any](objects []unstructured.Unstructured, namespace string, take func(name string, o T)) error {
	for i := range objects {
		if objects[i].GetNamespace() != namespace {
			continue
		}
		o, err := decode[T](&objects[i])
		if err != nil {
			return err
		}
		take(objects[i].GetName(), o)
	}
	return nil
}

// namespaceOf returns asked if it is not empty, otherwise the one namespace of all
// objects, kube-system if there are none.
func namespaceOf(asked string, objects []unstructured.Unstructured) (string, error) {
	if asked != "" {
		return asked, nil
	}
	found := map[string]bool{}
	for i := range objects {
		found[objects[i].GetNamespace()] = true
	}
	switch names := slices.Sorted(maps.Keys(found)); len(names) {
	case 0:
		return metav1.NamespaceSystem, nil
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("whereabouts has objects in the namespaces %q: name the one that its nodes use", names)
	}
}

// readFairlead reads the objects of Fairlead.
func (c *Cluster) readFairlead(ctx context.Context, api client.Reader) error {
	var (
		pools    v1alpha1.IPPoolList
		blocks   v1alpha1.IPBlockList
		records  v1alpha1.PodAttachmentList
		withheld v1alpha1.IPReservationList
	)
	for _, list := range []client.ObjectList{&pools, &blocks, &records, &withheld} {
		if err := api.List(ctx, list); err != nil {
			return fmt.Errorf("list Fairlead's objects: %w", err)
		}
	}
	c.IPPools, c.Blocks, c.Records, c.Withheld = pools.Items, blocks.Items, records.Items, withheld.Items
	return nil
}

// readNetworks reads the NetworkAttachmentDefinitions that whereabouts serves.
func (c *Cluster) readNetworks(ctx context.Context, api client.Reader, flat []byte) error {
	objects, err := networkKind.list(ctx, api)
	if err != nil {
		return err
	}
	for i := range objects {
		name := objects[i].GetNamespace() + "/" + objects[i].GetName()
		o, err := decode[networkObject](&objects[i])
		if err != nil {
			return err
		}
		for _, section := range sections(o.Spec.Config) {
			network, warnings, err := networkOf(name, section, flat)
			if err != nil {
				// The addresses of its pods are imported as whereabouts recorded them.
				text := fmt.Sprintf("network %s gets no IPPool: %v", name, err)
				if len(flat) == 0 && reliesOnFlatFile(section) {
					text += "; it seems to rely on the whereabouts.conf of the nodes: give a copy of that file with --flat-file"
				}
				c.Warnings = append(c.Warnings, text)
				continue
			}
			for _, w := range warnings {
				c.Warnings = append(c.Warnings, fmt.Sprintf("network %s: %s", name, w))
			}
			c.Networks = append(c.Networks, network)
		}
	}
	return nil
}

// sections returns the ipam sections of whereabouts in a network configuration,
// which is one plugin or a list of them (CNI specification 1.1.0, section 1).
func sections(config string) []json.RawMessage {
	type plugin struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal([]byte(config), &list) != nil {
		return nil // no plugin can parse it either
	}
	var out []json.RawMessage
	for _, p := range append(list.Plugins, list.plugin) {
		var head struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(p.IPAM, &head) == nil && head.Type == whereabouts.Type {
			out = append(out, p.IPAM)
		}
	}
	return out
}

// reliesOnFlatFile reports whether a section names no range of its own.
func reliesOnFlatFile(section []byte) bool {
	var o struct {
		Range  string            `json:"range"`
		Ranges []json.RawMessage `json:"ipRanges"`
	}
	return json.Unmarshal(section, &o) == nil && o.Range == "" && len(o.Ranges) == 0
}

// networkOf parses one ipam section. enable_overlapping_ranges of the flat file has no
// effect, as in whereabouts.
func networkOf(name string, section, flat []byte) (migrate.Network, []string, error) {
	c, warnings, err := whereabouts.Parse(section, flat)
	if err != nil {
		return migrate.Network{}, nil, err
	}
	var overlapping struct {
		Enabled *bool `json:"enable_overlapping_ranges"`
	}
	if err := json.Unmarshal(section, &overlapping); err != nil {
		return migrate.Network{}, nil, fmt.Errorf("ipam.enable_overlapping_ranges: %w", err)
	}
	namespace, _, _ := strings.Cut(name, "/")
	domain := whereabouts.Domain(c.NetworkName)
	n := migrate.Network{
		Name: name, Space: c.NetworkName, Domain: domain, Own: whereabouts.NamespaceDomain(namespace, c.NetworkName), Pools: whereabouts.Pools(c, domain),
		Overlapping: overlapping.Enabled == nil || *overlapping.Enabled,
		Routes:      c.Routes, DNS: c.DNS,
	}
	if c.Gateway.IsValid() {
		n.Gateways = []string{c.Gateway.String()}
	}
	for _, r := range c.Ranges {
		n.Ranges = append(n.Ranges, r.Prefix)
	}
	return n, warnings, nil
}
