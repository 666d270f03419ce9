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

// Registry is what the API server says of this node's PodAttachments, by the
// pod that they are for. Objects in it are never changed.
//
// The watch has the last word. It tells of each object in order, so a state older
// than the one before is what the API server has now: etcd went back to a backup. The
// answers to writes of ours come beside the watch and are believed until it has
// shown them, but not for ever.
type Registry struct {
	// changed is called after each change, outside the lock, with the object as
	// it was when it is gone.
	changed func(pa *v1alpha1.PodAttachment, gone bool)
	// ready is closed when every PodAttachment of the node was seen once.
	ready chan struct{}

	mu      sync.Mutex
	synced  bool
	objects map[types.NamespacedName]*v1alpha1.PodAttachment
	unshown map[types.NamespacedName]unshown
	pods    map[types.NamespacedName]map[types.NamespacedName]struct{} // keys of objects by pod
	waiting map[types.NamespacedName]map[chan struct{}]struct{}        // subscribers by pod
}

// unshown is a write of ours that the watch has not shown yet.
type unshown struct {
	// shown is the last state that it has.
	shown *v1alpha1.PodAttachment
	// doubted: it was not shown before the last look either.
	doubted bool
}

// NewRegistry returns an empty registry, which calls changed after each change.
func NewRegistry(changed func(pa *v1alpha1.PodAttachment, gone bool)) *Registry {
	return &Registry{
		changed: changed,
		ready:   make(chan struct{}),
		objects: map[types.NamespacedName]*v1alpha1.PodAttachment{},
		unshown: map[types.NamespacedName]unshown{},
		pods:    map[types.NamespacedName]map[types.NamespacedName]struct{}{},
		waiting: map[types.NamespacedName]map[chan struct{}]struct{}{},
	}
}

// KeyOf is the name of a PodAttachment with its namespace.
func KeyOf(pa *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: pa.Namespace, Name: pa.Name}
}

// podOf is the pod that an object is of. CNI asks for it by this name and a UID; a UID
// alone, which users can write, is never looked for.
func podOf(pa *v1alpha1.PodAttachment) types.NamespacedName { return pa.Pod() }

// SetSynced notes that every PodAttachment of the node was seen once.
func (r *Registry) SetSynced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		r.synced = true
		close(r.ready)
	}
}

// WhenSynced is closed when every PodAttachment of the node was seen once.
func (r *Registry) WhenSynced() <-chan struct{} { return r.ready }

// IsSynced tells whether every PodAttachment of the node was seen once.
func (r *Registry) IsSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// Update takes an object as the watch shows it.
func (r *Registry) Update(pa *v1alpha1.PodAttachment) {
	r.mu.Lock()
	took := r.show(pa)
	r.mu.Unlock()
	if took {
		r.changed(pa, false)
	}
}

// show puts down what the watch shows, and reports whether it is news.
func (r *Registry) show(pa *v1alpha1.PodAttachment) bool {
	key := KeyOf(pa)
	if wrote, ok := r.unshown[key]; ok && pa.UID == wrote.shown.UID {
		if newer(r.objects[key], pa) && !newer(wrote.shown, pa) {
			wrote.shown = pa // from before our write
			r.unshown[key] = wrote
			return false
		}
		delete(r.unshown, key)
		if pa.ResourceVersion == r.objects[key].ResourceVersion {
			r.objects[key] = pa // our write
			return false
		}
	}
	delete(r.unshown, key)
	r.put(pa)
	return true
}

// Written takes the answer to a write of ours, so that the next look does not
// have to wait for the watch. It never brings an object back that is gone.
func (r *Registry) Written(pa *v1alpha1.PodAttachment) {
	key := KeyOf(pa)
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.objects[key]
	if old == nil || old.UID != pa.UID || !newer(pa, old) {
		return
	}
	if _, ok := r.unshown[key]; !ok {
		r.unshown[key] = unshown{shown: old}
	}
	r.put(pa)
}

// Settle gives up writes of ours that the watch has not shown since the last settle:
// they are lost, as when etcd went back to a backup, and what they said is said
// again. One that is only late is repeated in vain.
func (r *Registry) Settle() {
	var lost []*v1alpha1.PodAttachment
	r.mu.Lock()
	for key, wrote := range r.unshown {
		if !wrote.doubted {
			wrote.doubted = true
			r.unshown[key] = wrote
			continue
		}
		delete(r.unshown, key)
		r.put(wrote.shown)
		lost = append(lost, wrote.shown)
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

// newer tells whether a is a later state than b of the object of that name.
// Resource versions of one resource are ordered, also across its objects.
func newer(a, b *v1alpha1.PodAttachment) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// Delete takes note that an object is gone.
func (r *Registry) Delete(pa *v1alpha1.PodAttachment) {
	key := KeyOf(pa)
	r.mu.Lock()
	old := r.objects[key]
	if old == nil || old.UID != pa.UID {
		r.mu.Unlock()
		return
	}
	delete(r.objects, key)
	delete(r.unshown, key)
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
		default: // it has not looked yet since the last time
		}
	}
}

// Keys names every object.
func (r *Registry) Keys() []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.objects))
}

// Get returns the object of that name, or nil.
func (r *Registry) Get(key types.NamespacedName) *v1alpha1.PodAttachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[key]
}

// Lookup returns the PodAttachment of a pod. One of the same name with another
// UID is stale: it is never the answer, only returned apart for the message. A
// pod without a UID (from runtimes that do not pass it) gets the newest that is
// not being deleted, else the newest.
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

// Subscribe returns a channel that gets a value after each change of a
// PodAttachment of the pod, and a function that ends it. Changes that come
// before the last value was read are one.
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

// Remembered is how many things are remembered, by kind.
func (r *Registry) Remembered() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]int{"attachments": len(r.objects), "pods": len(r.pods), "subscribers": len(r.waiting)}
}
