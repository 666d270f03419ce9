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
	"fairlead.dev/fairlead/api/v1alpha1/form"
)

// Key is the identity of one incarnation of a pod. UID is the UID that the API server
// gave it, which no user can write.
type Key struct {
	Namespace, Name string
	UID             types.UID
}

// Identity is one incarnation of a pod on its node.
type Identity struct {
	Key
	// CNI is the UID in the runtime's CNI_ARGS; empty if it is the pod's own.
	CNI  types.UID
	Node string
}

// KeyOf returns the key of a pod.
func KeyOf(p *corev1.Pod) Key { return Key{p.Namespace, p.Name, p.UID} }

// IdentityOf returns the identity of a pod.
func IdentityOf(p *corev1.Pod) Identity {
	return Identity{Key: KeyOf(p), CNI: CNIUID(p), Node: p.Spec.NodeName}
}

// HolderOf returns the holder of a record's addresses, exactly as it took them.
func HolderOf(record *v1alpha1.PodAttachment) Key {
	of := record.Pod()
	return Key{of.Namespace, of.Name, record.HolderUID()}
}

// Of returns the pod of a record. It differs from HolderOf for static pods whose record
// is from a version that identified them by the UID in the annotation.
func Of(record *v1alpha1.PodAttachment) Key {
	of := record.Pod()
	return Key{of.Namespace, of.Name, record.OwnUID()}
}

// Record returns the PodAttachment of a pod with the given interfaces. Its finalizer
// keeps it until they are released.
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
			Summary:    Summarize(interfaces),
		},
	}
	if id.CNI != "" && id.CNI != id.UID {
		record.Spec.PodUID, record.Spec.APIUID = id.CNI, id.UID
	}
	return record
}

// Writable returns nil if the record of a pod with the given interfaces is valid,
// whatever their addresses will be. An error names the field or the annotation, the value
// and the accepted form.
func Writable(p *corev1.Pod, interfaces []v1alpha1.Interface) error {
	err := Record(IdentityOf(p), interfaces).Spec.Validate()
	if invalid, ok := errors.AsType[form.InvalidError](err); ok {
		for i := range invalid {
			if f := &invalid[i]; f.Field == "spec.podUID" {
				f.Field = "annotation " + corev1.MirrorPodAnnotationKey
			}
		}
	}
	return err
}

// Elsewhere returns a copy of a record for another namespace, for a pod whose own
// namespace is gone.
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

// OwnerOf returns the owner reference by which Kubernetes' garbage collector deletes a
// record after its pod is gone.
func OwnerOf(p *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
}

// Summarize returns interfaces and addresses in one line each, without internal ones.
func Summarize(interfaces []v1alpha1.Interface) v1alpha1.AttachmentSummary {
	var names, addresses []string
	for _, i := range interfaces {
		if i.Internal {
			continue
		}
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
