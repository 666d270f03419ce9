package pod

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Identity is one incarnation of a pod on its node.
type Identity struct {
	Namespace string
	Name      string
	UID       types.UID
	Node      string
}

// IdentityOf a pod.
func IdentityOf(p *corev1.Pod) Identity {
	return Identity{Namespace: p.Namespace, Name: p.Name, UID: UID(p), Node: p.Spec.NodeName}
}

// Record is the PodAttachment of a pod with these interfaces. Its finalizer
// keeps it until they are given back.
func Record(id Identity, interfaces []v1alpha1.Interface) *v1alpha1.PodAttachment {
	return &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  id.Namespace,
			Name:       AttachmentName(id.Name, id.UID),
			Finalizers: []string{v1alpha1.ReleaseFinalizer},
		},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName:    id.Name,
			PodUID:     id.UID,
			NodeName:   id.Node,
			Interfaces: interfaces,
			Summary:    summarize(interfaces),
		},
	}
}

// OwnerOf is the reference with which Kubernetes' garbage collector asks for a
// record's deletion when its pod is gone.
func OwnerOf(p *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
}

// summarize says interfaces and addresses in one line each.
func summarize(interfaces []v1alpha1.Interface) v1alpha1.AttachmentSummary {
	var names, addresses []string
	for _, i := range interfaces {
		names = append(names, i.Name)
		for _, cidr := range i.Addresses {
			if p, err := netip.ParsePrefix(cidr); err == nil {
				addresses = append(addresses, p.Addr().String())
			}
		}
	}
	return v1alpha1.AttachmentSummary{Interfaces: strings.Join(names, ","), Addresses: strings.Join(addresses, ",")}
}
