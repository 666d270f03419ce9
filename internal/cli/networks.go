package cli

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
func (s *snapshot) asksFurther(p *corev1.Pod) bool {
	selected, err := pod.Networks(p)
	if err != nil {
		return true
	}
	for _, n := range selected {
		if !s.foreign[types.NamespacedName{Namespace: n.Namespace, Name: n.Name}] {
			return true
		}
	}
	return false
}

// notOurs reports whether a pod on a node has no network of Fairlead.
func (s *snapshot) notOurs(p *corev1.Pod, n *v1alpha1.NodeNetwork) bool {
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
	r.snap.foreign = map[types.NamespacedName]bool{}
	for i := range list.Items {
		text, _, err := unstructured.NestedString(list.Items[i].Object, "spec", "config")
		if err != nil {
			continue
		}
		if n, err := nad.Parse(text, nil); err == nil && !n.Served() {
			r.snap.foreign[types.NamespacedName{Namespace: list.Items[i].GetNamespace(), Name: list.Items[i].GetName()}] = true
		}
	}
	return nil
}
