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

// Listed reports whether all records were read that were there when this process
// began.
func (r *Attachments) Listed() bool { return !r.listing.Load() }

// mustWait reports whether nothing is handed out to a pod yet: until all records were read
// nobody knows which interfaces they name, and its drivers may not know all that is taken.
// The pod is called when that is over.
func (r *Attachments) mustWait(p *corev1.Pod) bool {
	over := func() bool { return !r.listing.Load() && r.knows(p) }
	if over() {
		return false
	}
	r.waiting.add(p, nil)
	return !over() // else those that wait may have been called before
}

// knows reports whether the drivers of a pod's interfaces know what is taken. Of a pod of
// which cannot be said what it asks for, it is that of the default network.
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
// They call the pod when they do. A driver that is not there knows nothing and is no
// reason to wait: the release says that it is missing.
func (r *Attachments) synced(record *v1alpha1.PodAttachment) bool {
	return !slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool { return !r.Drivers[i.Driver].IsSynced() })
}

func (s *strangers) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}

func (w *waiting) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.m)
}

// nodeWord is how long word of a new Node may be behind that of the first pods on it,
// before they are told that there is none.
const nodeWord = 5 * time.Second

// eventNodeUnknown is posted on a pod that is bound to a node that does not exist.
const eventNodeUnknown = "NodeUnknown"

// nodeOf reports whether the Node of a pod is known, and whether it is ours.
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

// awaitItsNode lets a pod wait that is bound to a node which does not exist, or of which
// word has not come yet. The Node's event brings the pod back at once. Any other pod that
// is not served waits for nothing.
func (r *Attachments) awaitItsNode(ctx context.Context, s *sight) (ctrl.Result, error) {
	key, p := s.key, s.pod
	switch {
	case s.served:
		return ctrl.Result{}, nil
	case p == nil || s.current != nil || !pod.Wants(p):
		if s.current != nil {
			r.waiting.remove(key)
		}
		r.strangers.remove(key) // what it has obtained is left to leave
		return ctrl.Result{}, nil
	}
	if w, ok := r.waiting.get(key); !ok || w.pod != pod.IdentityOf(p) {
		r.waiting.add(p, nil) // before the look: an event that comes after it finds the pod here
	}
	if known, ours := r.nodeOf(ctx, p); known {
		r.waiting.remove(key)
		r.strangers.remove(key)
		if ours {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil // it has come in this moment
		}
		return ctrl.Result{}, nil
	}
	if left := r.strangers.left(key, nodeWord); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	of := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	r.told.Tell(of, "", eventNodeUnknown, "EnsureNetwork", fmt.Sprintf(
		"no network yet: there is no Node %q: the pod gets its addresses when there is one; delete it when there will be none", p.Spec.NodeName))
	return ctrl.Result{}, nil
}

// strangers are pods whose Node is not known, with when that was first seen.
type strangers struct {
	mu sync.Mutex
	m  map[types.NamespacedName]time.Time
}

// left is how much is left of the time until a pod is told.
func (s *strangers) left(key types.NamespacedName, word time.Duration) time.Duration {
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

func (s *strangers) remove(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
}

// waiting is the set of pods that could not be given their network.
type waiting struct {
	metrics *Metrics
	told    *warn.Teller

	mu sync.Mutex
	m  map[types.NamespacedName]waiter
}

// waiter is a pod that waits.
type waiter struct {
	pod pod.Identity
	// interfaces of which it may have obtained some.
	interfaces []string
}

func (w *waiting) add(p *corev1.Pod, interfaces []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.m[client.ObjectKeyFromObject(p)] = waiter{pod.IdentityOf(p), interfaces}
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
	w.told.Forget(key)
	if delete(w.m, key); len(w.m) == 0 {
		w.m = map[types.NamespacedName]waiter{} // one that was large stays so
	}
	w.metrics.waiting.Set(float64(len(w.m)))
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

// leave gives back what a pod had obtained that waited for the rest until it went. A pod
// that terminates waits until it is gone: what it has obtained goes with it.
func (r *Attachments) leave(ctx context.Context, s *sight) (ctrl.Result, error) {
	w, ok := r.waiting.get(s.key)
	if !ok || s.pod != nil && pod.KeyOf(s.pod) == w.pod.Key && pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	if held := r.heldOf(w); r.Left != nil && len(held) > 0 {
		if err := r.Left(ctx, w.pod, held); err != nil {
			return ctrl.Result{}, fmt.Errorf("give back what pod %s had while it waited: %w", s.key, err)
		}
	}
	r.waiting.remove(s.key)
	return ctrl.Result{}, nil
}

// heldOf is what drivers, by name, hold for a pod that waits. Of a driver that does not
// know yet garbage collection finds it.
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
