package apiserver

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Registry has this node's PodAttachments, by pod. Objects in it are never changed.
//
// The watch is authoritative. Its events for one object come in order, so an event with an
// older state than the one before means that etcd was restored from a backup, and that
// state is the present one. The results of the daemon's own writes arrive outside the
// watch. The registry uses them until the watch has delivered them, or until DropOverdue gives
// them up.
type Registry struct {
	// changed is called after each change, outside the lock. If the object is gone, pa
	// is its last state.
	changed func(pa *v1alpha1.PodAttachment, gone bool)
	// ready is closed when every PodAttachment of the node has been read once.
	ready chan struct{}

	mu      sync.Mutex
	synced  bool
	objects map[types.NamespacedName]*v1alpha1.PodAttachment
	pending map[types.NamespacedName]pendingWrite
	pods    map[types.NamespacedName]map[types.NamespacedName]struct{} // keys of objects by pod
	waiting map[types.NamespacedName]map[chan struct{}]struct{}        // subscribers by pod
}

// pendingWrite is a write of this daemon that the watch has not delivered yet.
type pendingWrite struct {
	// watched is the latest state that the watch has delivered.
	watched *v1alpha1.PodAttachment
	// overdue is true if the write was pending at the last DropOverdue already.
	overdue bool
}

// NewRegistry returns an empty registry. changed is called after each change by the watch or
// by DropOverdue, outside the lock; if the object is gone, pa is its last state.
func NewRegistry(changed func(pa *v1alpha1.PodAttachment, gone bool)) *Registry {
	return &Registry{
		changed: changed,
		ready:   make(chan struct{}),
		objects: map[types.NamespacedName]*v1alpha1.PodAttachment{},
		pending: map[types.NamespacedName]pendingWrite{},
		pods:    map[types.NamespacedName]map[types.NamespacedName]struct{}{},
		waiting: map[types.NamespacedName]map[chan struct{}]struct{}{},
	}
}

// KeyOf returns the namespace and name of a PodAttachment.
func KeyOf(pa *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: pa.Namespace, Name: pa.Name}
}

// Ready reports whether a PodAttachment can be plugged: it has interfaces, is not being
// deleted, and is not of a pod whose namespace is gone.
func Ready(pa *v1alpha1.PodAttachment) bool {
	return pa != nil && pa.DeletionTimestamp == nil && pa.Spec.PodNamespace == "" && len(pa.Spec.Interfaces) > 0
}

// podOf returns the pod of a PodAttachment. CNI requests name it with a UID. The registry
// never searches by a UID alone, because users can write it.
func podOf(pa *v1alpha1.PodAttachment) types.NamespacedName { return pa.Pod() }

// SetSynced notes that every PodAttachment of the node has been read once.
func (r *Registry) SetSynced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		r.synced = true
		close(r.ready)
	}
}

// WhenSynced returns a channel that is closed when every PodAttachment of the node has been
// read once.
func (r *Registry) WhenSynced() <-chan struct{} { return r.ready }

// IsSynced reports whether every PodAttachment of the node has been read once.
func (r *Registry) IsSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// Update enters an object that the watch delivers.
func (r *Registry) Update(pa *v1alpha1.PodAttachment) {
	r.mu.Lock()
	changed := r.observe(pa)
	r.mu.Unlock()
	if changed {
		r.changed(pa, false)
	}
}

// observe enters an object that the watch delivers, and reports whether it differs from the
// latest known state.
func (r *Registry) observe(pa *v1alpha1.PodAttachment) bool {
	key := KeyOf(pa)
	if wrote, ok := r.pending[key]; ok && pa.UID == wrote.watched.UID {
		if newer(r.objects[key], pa) && !newer(wrote.watched, pa) {
			wrote.watched = pa // from before our write
			r.pending[key] = wrote
			return false
		}
		delete(r.pending, key)
		if pa.ResourceVersion == r.objects[key].ResourceVersion {
			r.objects[key] = pa // our write
			return false
		}
	}
	delete(r.pending, key)
	r.put(pa)
	return true
}

// Written enters the result of a write of this daemon, so that readers need not wait for
// the watch. It never adds an object: the object may have been deleted since.
func (r *Registry) Written(pa *v1alpha1.PodAttachment) {
	key := KeyOf(pa)
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.objects[key]
	if old == nil || old.UID != pa.UID || !newer(pa, old) {
		return
	}
	if _, ok := r.pending[key]; !ok {
		r.pending[key] = pendingWrite{watched: old}
	}
	r.put(pa)
}

// DropOverdue gives up writes of this daemon that have been pending since the last DropOverdue. They
// are lost if etcd was restored from a backup. The registry returns to the state of the
// watch and calls changed, so that the status is written again. A write that was only late
// is repeated without need.
func (r *Registry) DropOverdue() {
	var lost []*v1alpha1.PodAttachment
	r.mu.Lock()
	for key, wrote := range r.pending {
		if !wrote.overdue {
			wrote.overdue = true
			r.pending[key] = wrote
			continue
		}
		delete(r.pending, key)
		r.put(wrote.watched)
		lost = append(lost, wrote.watched)
	}
	r.mu.Unlock()
	for _, pa := range lost {
		r.changed(pa, false)
	}
}

func (r *Registry) put(pa *v1alpha1.PodAttachment) {
	key, pod := KeyOf(pa), podOf(pa)
	if old := r.objects[key]; old != nil {
		r.unlink(key, podOf(old))
	}
	r.objects[key] = pa
	if r.pods[pod] == nil {
		r.pods[pod] = map[types.NamespacedName]struct{}{}
	}
	r.pods[pod][key] = struct{}{}
	r.wake(pod)
}

// newer reports whether a is a later state than b. They may be two objects of one name:
// resource versions are ordered across all objects of a resource.
func newer(a, b *v1alpha1.PodAttachment) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// Delete removes an object. It ignores an object with another UID than that in the
// registry.
func (r *Registry) Delete(pa *v1alpha1.PodAttachment) {
	key := KeyOf(pa)
	r.mu.Lock()
	old := r.objects[key]
	if old == nil || old.UID != pa.UID {
		r.mu.Unlock()
		return
	}
	delete(r.objects, key)
	delete(r.pending, key)
	r.unlink(key, podOf(old))
	r.wake(podOf(old))
	r.mu.Unlock()
	r.changed(pa, true)
}

func (r *Registry) unlink(key, pod types.NamespacedName) {
	delete(r.pods[pod], key)
	if len(r.pods[pod]) == 0 {
		delete(r.pods, pod)
	}
}

func (r *Registry) wake(pod types.NamespacedName) {
	for ch := range r.waiting[pod] {
		select {
		case ch <- struct{}{}:
		default: // the subscriber has not read the previous value yet
		}
	}
}

// Keys returns the keys of all objects.
func (r *Registry) Keys() []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.objects))
}

// Get returns the object with a key, nil if there is none.
func (r *Registry) Get(key types.NamespacedName) *v1alpha1.PodAttachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[key]
}

// Lookup returns the PodAttachment of a pod. stale is a PodAttachment for a pod with the
// same name and another UID; it may be used in messages only. Some runtimes do not pass a
// UID: then found is the newest PodAttachment that is not being deleted, or the newest
// if all are.
func (r *Registry) Lookup(pod ledger.Pod) (found, stale *v1alpha1.PodAttachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] {
		pa := r.objects[key]
		if pod.UID != "" && pa.Spec.PodUID != pod.UID {
			stale = pa
			continue
		}
		if found == nil || preferred(pa, found) {
			found = pa
		}
	}
	return found, stale
}

func preferred(a, b *v1alpha1.PodAttachment) bool {
	if (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) {
		return a.DeletionTimestamp == nil
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// Subscribe returns a channel that gets a value after each change of a PodAttachment of the
// pod, and a function that ends the subscription. Several changes make one value if the
// subscriber has not read the value before.
func (r *Registry) Subscribe(pod ledger.Pod) (<-chan struct{}, func()) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	ch := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[key] == nil {
		r.waiting[key] = map[chan struct{}]struct{}{}
	}
	r.waiting[key][ch] = struct{}{}
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting[key], ch)
		if len(r.waiting[key]) == 0 {
			delete(r.waiting, key)
		}
	}
}
