package slim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/pod"
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
