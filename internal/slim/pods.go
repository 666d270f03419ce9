package slim

import (
	"bytes"
	"maps"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/pod"
)

// pods slims pods to the fields that the controller uses. Values that many pods have
// are kept once.
type pods struct {
	words words

	mu sync.Mutex
	// workloads by the UID of their controller.
	workloads map[types.UID]*workload
}

// workload has the values that the pods of a workload share.
type workload struct {
	owners []metav1.OwnerReference
	labels map[string]string
	// wire is the labels in protobuf; nil until a pod was decoded from them.
	wire []byte
}

// maxWorkloads limits the memory of workloads without pods. At the limit the map starts
// empty again.
const maxWorkloads = 1 << 13

// maxShared bounds the labels that the pods of a workload share, in bytes: a workload keeps
// them when its pods are gone.
const maxShared = 2 << 10

// maxOwner bounds each text of an owner reference, in bytes. The longest valid one is the
// version of an API: a group of 253 characters, "/", and 63 more. Kubernetes itself does not
// bound them.
const maxOwner = 317

// boundedOwner reports whether an owner is kept. A longer one is no object of Kubernetes.
func boundedOwner(o *metav1.OwnerReference) bool {
	return max(len(o.APIVersion), len(o.Kind), len(o.Name), len(o.UID)) <= maxOwner
}

// labelsSize returns the bytes of keys and values.
func labelsSize(labels map[string]string) (size int) {
	for key, value := range labels {
		size += len(key) + len(value)
	}
	return size
}

// isController is the target of the Controller pointer of every cached owner reference.
var isController = true

// slim is a cache.TransformFunc.
func (s *pods) slim(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok || len(p.Spec.Containers) == 0 {
		return o, nil // a pod without containers was decoded by this package
	}
	kept := metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
	}
	for key, value := range p.Annotations {
		if value, ok := pod.Kept([]byte(key), []byte(value)); ok {
			metav1.SetMetaDataAnnotation(&kept, key, value)
		}
	}
	if size := labelsSize(p.Labels); size > pod.MaxLabels {
		kept.Labels = nil
		metav1.SetMetaDataAnnotation(&kept, pod.AnnotationLabelsLeftOut, strconv.Itoa(size))
	}
	if owner := metav1.GetControllerOf(p); owner != nil && boundedOwner(owner) {
		s.words.share(&owner.APIVersion, &owner.Kind, &owner.Name, (*string)(&owner.UID))
		owner.BlockOwnerDeletion, owner.Controller = nil, &isController
		kept.OwnerReferences, kept.Labels = s.shared(*owner, kept.Labels)
	}
	p.ObjectMeta = kept
	spec := corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	for _, c := range p.Spec.Containers {
		pod.AddRequests(&spec, c.Resources.Requests)
	}
	p.Spec = spec
	p.Status = corev1.PodStatus{Phase: p.Status.Phase}
	s.words.share(&p.Namespace, &p.Spec.NodeName, (*string)(&p.Status.Phase))
	return p, nil
}

// shared returns the owner and the labels of another pod of the workload, if they are
// equal, so that the memory is shared.
func (s *pods) shared(owner metav1.OwnerReference, labels map[string]string) ([]metav1.OwnerReference, map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workload(owner)
	switch {
	case labelsSize(labels) > maxShared:
		return w.owners, labels
	case !maps.Equal(w.labels, labels):
		w.labels, w.wire = labels, nil
	}
	return w.owners, w.labels
}

// decoded is shared for labels in protobuf. It decodes them only if they differ from
// the workload's.
func (s *pods) decoded(owner metav1.OwnerReference, wire []byte) ([]metav1.OwnerReference, map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workload(owner)
	if len(wire) > maxShared {
		labels, err := decodeLabels(wire)
		return w.owners, labels, err
	}
	if w.wire == nil || !bytes.Equal(w.wire, wire) {
		labels, err := decodeLabels(wire)
		if err != nil {
			return nil, nil, err
		}
		if !maps.Equal(w.labels, labels) {
			w.labels = labels
		}
		w.wire = bytes.Clone(wire)
	}
	return w.owners, w.labels, nil
}

// workload returns the workload of an owner. mu must be held.
func (s *pods) workload(owner metav1.OwnerReference) *workload {
	w := s.workloads[owner.UID]
	if w == nil || w.owners[0] != owner {
		if s.workloads == nil || len(s.workloads) == maxWorkloads {
			s.workloads = map[types.UID]*workload{}
		}
		w = &workload{owners: []metav1.OwnerReference{owner}}
		s.workloads[owner.UID] = w
	}
	return w
}
