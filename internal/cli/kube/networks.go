package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// otherDefault reports whether another plugin provides the default network of the node's
// pods.
func otherDefault(n *v1alpha1.NodeNetwork) bool {
	return n.Spec.DefaultNetwork == v1alpha1.DefaultNetworkOther
}

// asksFurther reports whether a pod requests a further network whose addresses Fairlead
// gives. An unparsable annotation counts as such a request: the controller rejects it and
// reports it.
func (s *Snapshot) asksFurther(p *corev1.Pod) bool {
	selected, err := pod.Networks(p)
	if err != nil {
		return true
	}
	for _, n := range selected {
		if !s.Foreign[types.NamespacedName{Namespace: n.Namespace, Name: n.Name}] {
			return true
		}
	}
	return false
}

// NotOurs reports whether a pod on a node has no network of Fairlead.
func (s *Snapshot) NotOurs(p *corev1.Pod, n *v1alpha1.NodeNetwork) bool {
	return otherDefault(n) && !s.asksFurther(p)
}

// readForeign reads which NetworkAttachmentDefinitions have addresses that another plugin
// gives. If the user has no right to read them, all count as Fairlead's.
func (r *reader) readForeign(ctx context.Context) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(nad.Kind)
	err := r.api.List(ctx, list)
	if err != nil && !missing(err) && !apierrors.IsForbidden(err) {
		return explain(err, r.server, "network-attachment-definitions.k8s.cni.cncf.io")
	}
	r.snap.Foreign = map[types.NamespacedName]bool{}
	for i := range list.Items {
		if n, err := NetworkOf(&list.Items[i]); err == nil && !n.Served() {
			r.snap.Foreign[types.NamespacedName{Namespace: list.Items[i].GetNamespace(), Name: list.Items[i].GetName()}] = true
		}
	}
	return nil
}

// NetworkOf parses the configuration of a NetworkAttachmentDefinition.
func NetworkOf(o *unstructured.Unstructured) (nad.Network, error) {
	text, _, err := unstructured.NestedString(o.Object, "spec", "config")
	if err != nil {
		return nad.Network{}, err
	}
	return nad.Parse(text, nil)
}

// Unrecorded are pods that want a network and have no record.
type Unrecorded struct {
	Here      []*corev1.Pod // on nodes that Fairlead serves
	Elsewhere []*corev1.Pod
	NotOurs   []*corev1.Pod // need no record: none of their networks is Fairlead's
}

// WithoutRecord sorts the pods without a record. A node with a NodeNetwork is served: the
// controller writes a NodeNetwork for each node that it serves.
func WithoutRecord(snap Snapshot) Unrecorded {
	served := map[string]*v1alpha1.NodeNetwork{}
	for i := range snap.Nodes {
		served[snap.Nodes[i].Name] = &snap.Nodes[i]
	}
	var out Unrecorded
	recorded := map[pod.Key]bool{}
	for i := range snap.Attachments {
		recorded[pod.Of(&snap.Attachments[i])] = true
	}
	for i := range snap.Pods {
		p := &snap.Pods[i]
		node := served[p.Spec.NodeName]
		switch {
		case !pod.Wants(p) || recorded[pod.KeyOf(p)]:
		case node == nil:
			out.Elsewhere = append(out.Elsewhere, p)
		case snap.NotOurs(p, node):
			out.NotOurs = append(out.NotOurs, p)
		default:
			out.Here = append(out.Here, p)
		}
	}
	return out
}
