package node

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// registry is what the API server says of this node's PodAttachments, by the
// pod that they are for. Objects in it are never changed.
type registry struct {
	// changed is called after each change, outside the lock, with the object as
	// it was when it is gone.
	changed func(pa *v1alpha1.PodAttachment, gone bool)
	ready   chan struct{}

	mu      sync.Mutex
	synced  bool
	objects map[types.NamespacedName]*v1alpha1.PodAttachment
	pods    map[types.NamespacedName]map[types.NamespacedName]struct{} // keys of objects by pod
	waiting map[types.NamespacedName]map[chan struct{}]struct{}        // subscribers by pod
}

func newRegistry(changed func(pa *v1alpha1.PodAttachment, gone bool)) *registry {
	return &registry{
		changed: changed,
		ready:   make(chan struct{}),
		objects: map[types.NamespacedName]*v1alpha1.PodAttachment{},
		pods:    map[types.NamespacedName]map[types.NamespacedName]struct{}{},
		waiting: map[types.NamespacedName]map[chan struct{}]struct{}{},
	}
}

func keyOf(pa *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: pa.Namespace, Name: pa.Name}
}

func podOf(pa *v1alpha1.PodAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: pa.Namespace, Name: pa.Spec.PodName}
}

// setSynced notes that every PodAttachment of the node was seen once.
func (r *registry) setSynced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		r.synced = true
		close(r.ready)
	}
}

// isSynced tells whether every PodAttachment of the node was seen once.
func (r *registry) isSynced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// update takes an object that was seen, unless a newer one is there.
func (r *registry) update(pa *v1alpha1.PodAttachment) {
	r.mu.Lock()
	took := r.put(pa)
	r.mu.Unlock()
	if took {
		r.changed(pa, false)
	}
}

// written takes the answer to a write of ours, so that the next look does not
// have to wait for the watch. It never brings an object back that is gone.
func (r *registry) written(pa *v1alpha1.PodAttachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.objects[keyOf(pa)]; old != nil && old.UID == pa.UID {
		r.put(pa)
	}
}

func (r *registry) put(pa *v1alpha1.PodAttachment) bool {
	key, pod := keyOf(pa), podOf(pa)
	if old := r.objects[key]; old != nil {
		if !newer(pa, old) {
			return false
		}
		r.unlink(key, podOf(old))
	}
	r.objects[key] = pa
	if r.pods[pod] == nil {
		r.pods[pod] = map[types.NamespacedName]struct{}{}
	}
	r.pods[pod][key] = struct{}{}
	r.wake(pod)
	return true
}

// newer tells whether a is a later state than b of the object of that name.
// Resource versions of one resource are ordered, also across its objects.
func newer(a, b *v1alpha1.PodAttachment) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// delete takes note that an object is gone.
func (r *registry) delete(pa *v1alpha1.PodAttachment) {
	key := keyOf(pa)
	r.mu.Lock()
	old := r.objects[key]
	if old == nil || old.UID != pa.UID {
		r.mu.Unlock()
		return
	}
	delete(r.objects, key)
	r.unlink(key, podOf(old))
	r.wake(podOf(old))
	r.mu.Unlock()
	r.changed(pa, true)
}

func (r *registry) unlink(key, pod types.NamespacedName) {
	delete(r.pods[pod], key)
	if len(r.pods[pod]) == 0 {
		delete(r.pods, pod)
	}
}

func (r *registry) wake(pod types.NamespacedName) {
	for ch := range r.waiting[pod] {
		select {
		case ch <- struct{}{}:
		default: // it has not looked yet since the last time
		}
	}
}

// keys names every object.
func (r *registry) keys() []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.objects))
}

// get returns the object of that name, or nil.
func (r *registry) get(key types.NamespacedName) *v1alpha1.PodAttachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[key]
}

// lookup returns the PodAttachment of a pod. One of the same name with another
// UID is stale: it is never the answer, only returned apart for the message. A
// pod without a UID (from runtimes that do not pass it) gets the newest that is
// not being deleted, else the newest.
func (r *registry) lookup(pod podRef) (found, stale *v1alpha1.PodAttachment) {
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

// subscribe returns a channel that gets a value after each change of a
// PodAttachment of the pod, and a function that ends it. Changes that come
// before the last value was read are one.
func (r *registry) subscribe(pod podRef) (<-chan struct{}, func()) {
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
