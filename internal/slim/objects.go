package slim

import (
	"maps"
	"slices"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// podSlimmer keeps of pods what the controller uses, and with one copy the
// labels that a workload's pods have in common.
type podSlimmer struct {
	mu sync.Mutex
	// labels by the UID of the workload.
	labels map[types.UID]map[string]string
}

// maxShared bounds the memory of labels that no pod has any more: from there on
// it is begun anew.
const maxShared = 1 << 13

// slim is a cache.TransformFunc, as are the functions below.
func (s *podSlimmer) slim(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	slim := metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
	}
	share(&slim.Namespace, &p.Spec.NodeName)
	for key, value := range p.Annotations {
		if pod.Reads(key) {
			metav1.SetMetaDataAnnotation(&slim, key, value)
		}
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		share(&owner.APIVersion, &owner.Kind, &owner.Name)
		owner.UID = unique.Make(owner.UID).Value()
		owner.BlockOwnerDeletion, owner.Controller = nil, &yes
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
		slim.Labels = s.share(owner.UID, p.Labels)
	}
	p.ObjectMeta = slim
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	share((*string)(&p.Status.Phase))
	p.Status = corev1.PodStatus{Phase: p.Status.Phase}
	return p, nil
}

// yes is what every cached reference to a controller points at.
var yes = true

// share returns the copy of equal labels that another pod of the workload has.
func (s *podSlimmer) share(workload types.UID, labels map[string]string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same, ok := s.labels[workload]; ok && maps.Equal(same, labels) {
		return same
	}
	if s.labels == nil || len(s.labels) == maxShared {
		s.labels = map[types.UID]map[string]string{}
	}
	s.labels[workload] = labels
	return labels
}

// slimAttachment keeps a PodAttachment without its managed fields, and with one
// copy, in all of them together, of the words that most of them have. They are
// by far the most of what the program remembers.
func slimAttachment(o any) (any, error) {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok {
		return o, nil
	}
	a.ManagedFields = nil
	share(&a.Namespace, &a.Spec.NodeName)
	shareAll(a.Finalizers)
	for i := range a.OwnerReferences {
		owner := &a.OwnerReferences[i]
		share(&owner.APIVersion, &owner.Kind)
		if owner.UID == a.Spec.PodUID && owner.Name == a.Spec.PodName {
			owner.UID, owner.Name = a.Spec.PodUID, a.Spec.PodName
		}
	}
	share(&a.Spec.Summary.Interfaces)
	for i := range a.Spec.Interfaces {
		iface := &a.Spec.Interfaces[i]
		share(&iface.Name, &iface.Network, &iface.Driver, &iface.Domain, &iface.Pool)
		shareAll(iface.Gateways)
		if b := iface.Binding.Bridge; b != nil {
			share(&b.Name)
		}
	}
	if s := a.Status.Sandbox; s != nil {
		share(&s.BootID)
	}
	for i := range a.Status.Conditions {
		c := &a.Status.Conditions[i]
		// Attached and Ready of one record say the same.
		share(&c.Type, &c.Reason, &c.Message)
	}
	return a, nil
}

// share replaces strings by the copy that all equal ones have.
func share(texts ...*string) {
	for _, s := range texts {
		*s = unique.Make(*s).Value()
	}
}

func shareAll(texts []string) {
	for i := range texts {
		share(&texts[i])
	}
}

// slimNode keeps a node's identity and labels, and what may prove that nothing
// is plugged there any more.
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
	n.Spec = corev1.NodeSpec{Taints: slices.Clone(taints)}
	n.Status = corev1.NodeStatus{Conditions: slices.Clone(ready), NodeInfo: corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID}}
	return n, nil
}

// slimNamespace keeps a namespace's identity and labels.
func slimNamespace(o any) (any, error) {
	n, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	n.ObjectMeta = metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels, ResourceVersion: n.ResourceVersion}
	n.Spec, n.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	return n, nil
}
