package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// names are the names of the records in the cache, by pod. A cache index would take ten
// times the memory: it has two sets for each pod, and nearly every pod has one record.
// names may lag behind the cache, but never behind a record's own event.
type names struct {
	mu sync.RWMutex
	m  map[types.NamespacedName][]string
}

func podOf(record *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: record.Namespace, Name: record.Spec.PodName}
}

func (n *names) add(record *v1alpha1.PodAttachment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if key := podOf(record); !slices.Contains(n.m[key], record.Name) {
		n.m[key] = append(slices.Clip(n.m[key]), record.Name)
	}
}

func (n *names) remove(record *v1alpha1.PodAttachment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := podOf(record)
	left := slices.DeleteFunc(slices.Clone(n.m[key]), func(name string) bool { return name == record.Name })
	if len(left) == 0 {
		delete(n.m, key)
		return
	}
	n.m[key] = left
}

// of returns the names of a pod's records; the slice is never changed afterwards.
func (n *names) of(pod types.NamespacedName) []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.m[pod]
}

// refsOf returns the interfaces of a record, last first, for the drivers to release.
func refsOf(record *v1alpha1.PodAttachment) []driver.Ref {
	refs := make([]driver.Ref, 0, len(record.Spec.Interfaces))
	for _, iface := range slices.Backward(record.Spec.Interfaces) {
		refs = append(refs, driver.Ref{Owner: holderOf(record, iface.Name), Interface: iface})
	}
	return refs
}

// holderOf returns the owner that an interface of a record was obtained for.
func holderOf(record *v1alpha1.PodAttachment, iface string) driver.Owner {
	of := pod.HolderOf(record)
	return driver.Owner{PodUID: of.UID, Interface: iface, Namespace: of.Namespace, PodName: of.Name, NodeName: record.Spec.NodeName}
}

// podRef returns a reference to a record's pod for events; the pod may be gone.
func podRef(record *v1alpha1.PodAttachment) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Spec.PodName, UID: record.OwnUID()},
	}
}

// interfaceRef refers to one interface of a record. client-go merges events that differ
// only in their text, and keeps the first text. So the events of each interface need an
// object of their own.
func interfaceRef(record *v1alpha1.PodAttachment, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachment", Namespace: record.Namespace, Name: record.Name, UID: record.UID,
		FieldPath: fmt.Sprintf("spec.interfaces{%s}", name),
	}
}

// addressesOf returns an interface's addresses without prefix lengths.
func addressesOf(iface v1alpha1.Interface) string {
	var out []string
	for _, cidr := range iface.Addresses {
		a, _, _ := strings.Cut(cidr, "/")
		out = append(out, a)
	}
	return strings.Join(out, ",")
}

// networkOf names an interface's network, as far as it is known.
func (r *Attachments) networkOf(iface v1alpha1.Interface) string {
	if iface.Network != v1alpha1.UnknownNetwork {
		return "network " + iface.Network
	}
	const unknown = "a further network that is not known any more"
	if d := r.Drivers[iface.Driver]; d.Origin != nil {
		return unknown + ", of " + d.Origin(iface)
	}
	return unknown
}
