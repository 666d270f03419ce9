package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/warn"
)

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

// leave gives back what a pod had obtained that waited for the rest until it went. p is
// the pod of that name now, or nil.
func (r *Attachments) leave(ctx context.Context, key types.NamespacedName, p *corev1.Pod) error {
	w, ok := r.waiting.get(key)
	if !ok || p != nil && pod.KeyOf(p) == w.pod.Key && pod.Holds(p) {
		return nil
	}
	if held := r.heldOf(w); r.Left != nil && len(held) > 0 {
		if err := r.Left(ctx, w.pod, held); err != nil {
			return fmt.Errorf("give back what pod %s had while it waited: %w", key, err)
		}
	}
	r.waiting.remove(key)
	return nil
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
