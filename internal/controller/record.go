package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// ownerOf is who an interface of a pod is obtained for.
func ownerOf(p *corev1.Pod, name string) driver.Owner {
	return driver.Owner{
		PodUID:    p.UID,
		Interface: name,
		Namespace: p.Namespace,
		PodName:   p.Name,
		NodeName:  p.Spec.NodeName,
	}
}

// refsOf is what a record says is to be given back, in reverse order.
func refsOf(record *v1alpha1.PodAttachment) []driver.Ref {
	refs := make([]driver.Ref, 0, len(record.Spec.Interfaces))
	for _, iface := range slices.Backward(record.Spec.Interfaces) {
		refs = append(refs, driver.Ref{Owner: holderOf(record, iface.Name), Interface: iface})
	}
	return refs
}

// holderOf is whose an interface of a record is, exactly as it was obtained.
func holderOf(record *v1alpha1.PodAttachment, iface string) driver.Owner {
	of := pod.HolderOf(record)
	return driver.Owner{PodUID: of.UID, Interface: iface, Namespace: of.Namespace, PodName: of.Name, NodeName: record.Spec.NodeName}
}
