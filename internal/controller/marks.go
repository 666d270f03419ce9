package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// marks remembers what this process has written and its cache has not shown
// yet, by pod UID for created and by the record's UID for the rest. Losing it
// costs a repeated write, never correctness.
type marks struct {
	mu sync.Mutex
	m  map[types.UID]mark
}

type mark struct {
	created    bool
	waitsSince time.Time // when its release first waited for others
	lostSince  time.Time // when the record's Node was first seen to be no more
	deleted    bool
	freed      bool // its interfaces are given back
	released   bool // and its finalizer is dropped
}

func (s *marks) get(uid types.UID) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[uid]
}

func (s *marks) update(uid types.UID, change func(*mark)) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.m[uid]
	change(&v)
	s.m[uid] = v
	return v
}

// left is how much is left of a grace that others have to play their part in a release.
// It began when the release first asked.
func (s *marks) left(uid types.UID, grace time.Duration) time.Duration {
	now := time.Now()
	m := s.update(uid, func(m *mark) {
		if m.waitsSince.IsZero() {
			m.waitsSince = now
		}
	})
	return m.waitsSince.Add(grace).Sub(now)
}

func (s *marks) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m = map[types.UID]mark{}
}

func (s *marks) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, uid)
}

// AttachmentEvents maps an attachment to its pod, remembers its name, and drops the
// marks that the cache has caught up with.
func (r *Attachments) AttachmentEvents() handler.EventHandler {
	enqueue := func(o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.Add(reconcile.Request{NamespacedName: podOf(o.(*v1alpha1.PodAttachment))})
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.add(a)
			r.marks.drop(a.Spec.PodUID)
			if !r.asExpected(ctx, a) {
				enqueue(a, q)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.remove(a)
			r.marks.drop(a.UID)
			r.marks.drop(a.Spec.PodUID)
			r.told.forget(podOf(a))
			enqueue(a, q)
			r.wakeHeirs(a, q)
		},
	}
}

// asExpected reports whether a record that has appeared leaves nothing to do: its pod
// lives and waits for nothing more. The name of the record is remembered by then, so
// that whatever happens to the pod later finds it.
func (r *Attachments) asExpected(ctx context.Context, record *v1alpha1.PodAttachment) bool {
	waits := func(i v1alpha1.Interface) bool { return i.WaitForActive }
	if record.DeletionTimestamp != nil || len(record.Status.Interfaces) > 0 || slices.ContainsFunc(record.Spec.Interfaces, waits) {
		return false
	}
	key := podOf(record)
	p := &corev1.Pod{}
	if r.waiting.has(key) || r.Client.Get(ctx, key, p, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	return isFor(record, p)
}

// isFor reports whether a record is of this pod, and the pod wants its network still.
func isFor(record *v1alpha1.PodAttachment, p *corev1.Pod) bool {
	return pod.UID(p) == record.Spec.PodUID && pod.Wants(p)
}
