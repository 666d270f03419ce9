package slim

import (
	"bytes"
	"maps"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/pod"
)

// pods keeps of pods what the controller uses, and with one copy what many have
// in common.
type pods struct {
	words words

	mu sync.Mutex
	// workloads by their UID.
	workloads map[types.UID]*workload
}

// workload is what its pods have in common.
type workload struct {
	owners []metav1.OwnerReference
	labels map[string]string
	// wire is the labels' protobuf form, nil until a pod was decoded from it.
	wire []byte
}

// maxWorkloads bounds the memory of labels that no pod has any more: from there
// on it is begun anew.
const maxWorkloads = 1 << 13

// yes is what every cached reference to a controller points at.
var yes = true

// slim is a cache.TransformFunc.
func (s *pods) slim(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok || len(p.Spec.Containers) == 0 {
		return o, nil // without containers it was decoded here
	}
	kept := metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds,
	}
	for key, value := range p.Annotations {
		if n := pod.Keeps(key); n > 0 {
			metav1.SetMetaDataAnnotation(&kept, key, strings.Clone(value[:min(len(value), n)]))
		}
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		s.words.share(&owner.APIVersion, &owner.Kind, &owner.Name, (*string)(&owner.UID))
		owner.BlockOwnerDeletion, owner.Controller = nil, &yes
		kept.OwnerReferences, kept.Labels = s.shared(*owner, p.Labels)
	}
	p.ObjectMeta = kept
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase}
	s.words.share(&p.Namespace, &p.Spec.NodeName, (*string)(&p.Status.Phase))
	return p, nil
}

// shared returns the copies of an equal owner and of equal labels that another
// pod of the workload has.
func (s *pods) shared(owner metav1.OwnerReference, labels map[string]string) ([]metav1.OwnerReference, map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workload(owner)
	if !maps.Equal(w.labels, labels) {
		w.labels, w.wire = labels, nil
	}
	return w.owners, w.labels
}

// decoded is shared for labels in protobuf, which are decoded only if need be.
func (s *pods) decoded(owner metav1.OwnerReference, wire []byte) ([]metav1.OwnerReference, map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workload(owner)
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

// workload returns what is known of the pods of an owner, to be changed with mu
// held.
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
