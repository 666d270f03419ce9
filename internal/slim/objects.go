package slim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// slimNode keeps a node's identity, labels, addresses and machine, and the fields that can
// prove that nothing is plugged on it any more.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	n.ObjectMeta = metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, Labels: n.Labels, ResourceVersion: n.ResourceVersion,
		CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
	}
	taints := slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key != corev1.TaintNodeOutOfService })
	ready := slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type != corev1.NodeReady })
	n.Spec = corev1.NodeSpec{ProviderID: n.Spec.ProviderID, Taints: slices.Clone(taints)}
	names := func(a corev1.NodeAddress) bool {
		return a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP
	}
	n.Status = corev1.NodeStatus{
		Conditions: slices.Clone(ready), NodeInfo: corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID},
		Addresses: slices.Clone(slices.DeleteFunc(n.Status.Addresses, names)),
	}
	return n, nil
}

// slimNamespace keeps a namespace's identity and labels, and the annotations that drivers
// read.
func slimNamespace(o any) (any, error) {
	n, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	n.ObjectMeta = metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, Labels: n.Labels, ResourceVersion: n.ResourceVersion, Annotations: pod.KeptOfNamespace(n.Annotations),
	}
	n.Spec, n.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	return n, nil
}

// slimOther removes the managed fields of an object of any other kind. Tenants write
// IPClaims, IPAMClaims and NetworkAttachmentDefinitions, and Kubernetes bounds neither their
// labels nor their owners: slimOther keeps the used ones alone.
func slimOther(o any) (any, error) {
	object, err := meta.Accessor(o)
	if err != nil {
		return o, nil //nolint:nilerr // it has no metadata, as the mark of an object that was deleted unseen
	}
	object.SetManagedFields(nil)
	switch o.(type) {
	case *v1alpha1.IPClaim:
		object.SetAnnotations(nil)
	case *unstructured.Unstructured:
	default:
		return o, nil
	}
	object.SetFinalizers(nil) // tenants choose how many there are
	labels := map[string]string{}
	if by, ok := object.GetLabels()[run.LabelManagedBy]; ok {
		labels[run.LabelManagedBy] = by
	}
	object.SetLabels(labels)
	object.SetOwnerReferences(slices.Clone(slices.DeleteFunc(object.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return !boundedOwner(&r) })))
	return o, nil
}
