package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Key is the identity of one incarnation of a pod. Its UID is the one that the API
// server gave it; whatever users can write is not part of it.
type Key struct {
	Namespace, Name string
	UID             types.UID
}

// Identity is one incarnation of a pod on its node.
type Identity struct {
	Key
	// CNI is the UID under which CNI will ask for it; empty for its own.
	CNI  types.UID
	Node string
}

// KeyOf a pod.
func KeyOf(p *corev1.Pod) Key { return Key{p.Namespace, p.Name, p.UID} }

// IdentityOf a pod.
func IdentityOf(p *corev1.Pod) Identity {
	return Identity{Key: KeyOf(p), CNI: CNIUID(p), Node: p.Spec.NodeName}
}

// HolderOf is whose the addresses of a record are, exactly as they were taken.
func HolderOf(record *v1alpha1.PodAttachment) Key {
	of := record.Pod()
	return Key{of.Namespace, of.Name, record.HolderUID()}
}

// Of is the pod that a record is of. It differs from HolderOf for static pods whose
// record is of a version that knew them by the UID in the annotation.
func Of(record *v1alpha1.PodAttachment) Key {
	of := record.Pod()
	return Key{of.Namespace, of.Name, record.OwnUID()}
}

// Record is the PodAttachment of a pod with these interfaces. Its finalizer
// keeps it until they are given back.
func Record(id Identity, interfaces []v1alpha1.Interface) *v1alpha1.PodAttachment {
	record := &v1alpha1.PodAttachment{
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
	if id.CNI != "" && id.CNI != id.UID {
		record.Spec.PodUID, record.Spec.APIUID = id.CNI, id.UID
	}
	return record
}

// Writable says whether the record of a pod can be written with these interfaces,
// whatever their addresses are. Its error names the field or the annotation, the value
// and what would be right.
func Writable(p *corev1.Pod, interfaces []v1alpha1.Interface) error {
	err := Record(IdentityOf(p), interfaces).Spec.Validate()
	if invalid, ok := errors.AsType[v1alpha1.InvalidError](err); ok {
		for i := range invalid {
			if f := &invalid[i]; f.Field == "spec.podUID" {
				f.Field = "annotation " + corev1.MirrorPodAnnotationKey
			}
		}
	}
	return err
}

// Elsewhere has a record written in another namespace than its pod's, which is gone.
func Elsewhere(record *v1alpha1.PodAttachment, namespace string) *v1alpha1.PodAttachment {
	out := record.DeepCopy()
	out.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Finalizers: record.Finalizers}
	sum := sha256.Sum256([]byte(record.Namespace + "/" + record.Spec.PodName + "/" + string(record.HolderUID())))
	out.Name = "gone-" + hex.EncodeToString(sum[:16])
	if namespace != record.Namespace {
		out.Spec.PodNamespace = record.Namespace
	}
	return out
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
	return v1alpha1.AttachmentSummary{Interfaces: v1alpha1.OneLine(names, maxSummaryNames), Addresses: v1alpha1.OneLine(addresses, maxSummaryAddresses)}
}

// Limits of a summary in the API, in bytes.
const (
	maxSummaryNames     = 1024
	maxSummaryAddresses = 4096
)
