package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/warn"
)

// Listed reports whether all records have been read that existed when this process began.
func (r *Attachments) Listed() bool { return !r.readingRecords.Load() }

// mustWait reports whether a pod gets nothing yet. Until all records have been read, the
// interfaces that they name are unknown, and the pod's drivers may not know all that is
// taken. The pod is enqueued when both are known.
func (r *Attachments) mustWait(p *corev1.Pod) bool {
	over := func() bool { return !r.readingRecords.Load() && r.knows(p) }
	if over() {
		return false
	}
	r.waiting.add(p, nil)
	return !over() // the waiting pods may have been enqueued before the add
}

// knows reports whether the drivers of a pod's interfaces know all addresses and ports in
// use. If the pod's annotations cannot be read, the driver of the default network
// decides.
func (r *Attachments) knows(p *corev1.Pod) bool {
	unknown := map[string]bool{}
	for name, d := range r.Drivers {
		if !d.Knows() {
			unknown[name] = true
		}
	}
	if len(unknown) == 0 {
		return true
	}
	wanted, err := r.wanted(p)
	if err != nil {
		return !unknown[r.DefaultDriver]
	}
	return !slices.ContainsFunc(wanted, func(w pod.Interface) bool { return unknown[r.driverOf(&w)] })
}

// synced reports whether the drivers of a record's interfaces know all that is taken.
// They enqueue the pod when they do. A driver that does not exist is no reason to wait:
// the release fails with an error that names it.
func (r *Attachments) synced(record *v1alpha1.PodAttachment) bool {
	return !slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool { return !r.Drivers[i.Driver].IsSynced() })
}

// nodeCacheLag is how long a new Node may be missing from the cache when its first pods
// appear. After that the pods get an event that the Node does not exist.
const nodeCacheLag = 5 * time.Second

// eventNodeUnknown is posted on a pod that is bound to a node that does not exist.
const eventNodeUnknown = "NodeUnknown"

// nodeOf reports whether the Node of a pod is known, and whether it is served.
func (r *Attachments) nodeOf(ctx context.Context, p *corev1.Pod) (known, ours bool) {
	if p.Spec.NodeName == "" {
		return false, false
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node, client.UnsafeDisableDeepCopy); err != nil {
		return false, false // its event brings the pod back
	}
	return true, r.Nodes.Matches(labels.Set(node.Labels))
}

// awaitItsNode lets a pod wait whose Node does not exist or is not in the cache yet. The
// Node's event brings the pod back at once. Any other pod that is not served waits for
// nothing.
func (r *Attachments) awaitItsNode(ctx context.Context, s *observed) (ctrl.Result, error) {
	key, p := s.key, s.pod
	switch {
	case s.served:
		return ctrl.Result{}, nil
	case p == nil || s.current != nil || !pod.Wants(p):
		if s.current != nil {
			r.waiting.remove(key)
		}
		r.nodeless.remove(key) // giveBackUnrecorded gives back its interfaces
		return ctrl.Result{}, nil
	}
	if w, ok := r.waiting.get(key); !ok || w.pod != pod.IdentityOf(p) {
		r.waiting.add(p, nil) // before the Node is read: a later event finds the pod here
	}
	if known, ours := r.nodeOf(ctx, p); known {
		r.waiting.remove(key)
		r.nodeless.remove(key)
		if ours {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil // the Node has come just now
		}
		return ctrl.Result{}, nil
	}
	if left := r.nodeless.left(key, nodeCacheLag); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	r.warnings.Tell(podReference(p), "", eventNodeUnknown, "EnsureNetwork", fmt.Sprintf(
		"no network yet: there is no Node %q: the pod gets its addresses when there is one; delete it when there will be none", p.Spec.NodeName))
	return ctrl.Result{}, nil
}

// nodelessPods are the pods whose Node is not in the cache, with when that was first
// seen.
type nodelessPods struct {
	mu sync.Mutex
	m  map[types.NamespacedName]time.Time
}

// left returns how much is left of word until the pod gets an event.
func (s *nodelessPods) left(key types.NamespacedName, word time.Duration) time.Duration {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.m[key]
	if !ok {
		since = now
		s.m[key] = now
	}
	return word - now.Sub(since)
}

func (s *nodelessPods) remove(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
}

// waiting is the set of pods that could not get their network yet.
type waiting struct {
	metrics  *Metrics
	warnings *warn.Teller

	mu sync.Mutex
	m  map[types.NamespacedName]waiter
}

// waiter is a pod that waits.
type waiter struct {
	pod pod.Identity
	// interfaces that the pod asks for and may have obtained
	interfaces []string
	// since is when this process first saw the pod wait.
	since time.Time
}

func (w *waiting) add(p *corev1.Pod, interfaces []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key, id := client.ObjectKeyFromObject(p), pod.IdentityOf(p)
	since := time.Now()
	if before, ok := w.m[key]; ok && before.pod == id {
		since = before.since
	}
	w.m[key] = waiter{id, interfaces, since}
	w.metrics.waiting.Set(float64(len(w.m)))
}

func (w *waiting) get(key types.NamespacedName) (waiter, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	got, ok := w.m[key]
	return got, ok
}

func (w *waiting) remove(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.m[key]; !ok {
		return
	}
	w.warnings.Forget(key)
	if delete(w.m, key); len(w.m) == 0 {
		w.m = map[types.NamespacedName]waiter{} // Go never shrinks a map
	}
	w.metrics.waiting.Set(float64(len(w.m)))
}

// longest returns how long the pod has waited that has waited longest, 0 if none waits.
func (w *waiting) longest(now time.Time) (out time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, w := range w.m {
		out = max(out, now.Sub(w.since))
	}
	return out
}

func (w *waiting) has(key types.NamespacedName) bool {
	_, ok := w.get(key)
	return ok
}

func (w *waiting) all() []reconcile.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]reconcile.Request, 0, len(w.m))
	for key := range w.m {
		out = append(out, reconcile.Request{NamespacedName: key})
	}
	return out
}

// giveBackUnrecorded gives back the interfaces that a waiting pod had obtained when it
// went. A pod that terminates keeps them until it is gone.
func (r *Attachments) giveBackUnrecorded(ctx context.Context, s *observed) (ctrl.Result, error) {
	w, ok := r.waiting.get(s.key)
	if !ok || s.pod != nil && pod.KeyOf(s.pod) == w.pod.Key && pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	if held := r.heldOf(w); r.Left != nil && len(held) > 0 {
		if err := r.Left(ctx, w.pod, held); err != nil {
			return ctrl.Result{}, fmt.Errorf("give back the interfaces of pod %s, which waited for others: %w", s.key, err)
		}
	}
	r.waiting.remove(s.key)
	return ctrl.Result{}, nil
}

// heldOf returns the interfaces that drivers, by name, hold for a pod that waits. Those
// of a driver that is not synced yet are left to garbage collection.
func (r *Attachments) heldOf(w waiter) map[string][]driver.Ref {
	held := map[string][]driver.Ref{}
	for name, d := range r.Drivers {
		if d.Held == nil || !d.IsSynced() {
			continue
		}
		for _, i := range w.interfaces {
			o := driver.Owner{PodUID: w.pod.UID, Interface: i, Namespace: w.pod.Namespace, PodName: w.pod.Name, NodeName: w.pod.Node}
			if refs := d.Held(o); len(refs) > 0 {
				held[name] = append(held[name], refs...)
			}
		}
	}
	return held
}
