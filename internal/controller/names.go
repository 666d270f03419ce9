package controller

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// names are those of the records in the cache, by the pod that they were made
// for. A cache index would take ten times the memory: it has two sets for each
// pod, and nearly every pod has one record. Unlike an index this is a step behind
// the cache, but never behind a record's own event.
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

// of returns what nobody changes.
func (n *names) of(pod types.NamespacedName) []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.m[pod]
}
