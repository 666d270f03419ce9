package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// marks remembers what this process has written and its cache has not shown
// yet, by pod UID for created and by the record's UID for the rest. Losing it
// costs a repeated write, never correctness.
type marks struct {
	mu sync.Mutex
	m  map[types.UID]mark
}

type mark struct {
	created   bool
	goneSince time.Time // when the pod was first seen to be gone
	lostSince time.Time // when the record's Node was first seen to be no more
	deleted   bool
	released  bool
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
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.add(a)
			r.marks.drop(a.Spec.PodUID)
			enqueue(a, q)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a := e.Object.(*v1alpha1.PodAttachment)
			r.names.remove(a)
			r.marks.drop(a.UID)
			r.marks.drop(a.Spec.PodUID)
			enqueue(a, q)
			r.wakeHeirs(a, q)
		},
	}
}
