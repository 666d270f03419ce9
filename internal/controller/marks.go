package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/pod"
)

// marks remembers what this process has written and its cache has not shown yet.
// Losing it costs a repeated write, never correctness.
//
// What is remembered of a write is remembered before it and taken back when it fails:
// its event may come before its reply. And of what the cache does not have any more
// nothing is remembered: its last event may have come before.
type marks struct {
	mu sync.Mutex
	// creations are records that are being written, by the name of their pod: until
	// the cache shows the record, or the pod is gone.
	creations map[types.NamespacedName]creation
	// records are those in the cache of which something is remembered, by their UID.
	records map[types.UID]mark
}

// creation is the create of the record of one incarnation of a pod.
type creation struct {
	pod types.UID
	at  time.Time
}

// mark is what is remembered of a record.
type mark struct {
	waitsSince time.Time // when its release first waited for others
	lostSince  time.Time // when the record's Node was first seen to be no more
	// leavingSince is when the record was first seen to be being deleted.
	leavingSince time.Time
	pulse        proof.Pulse // of its node since then
	deleted      bool
	freed        bool // its interfaces are given back
	released     bool // and its finalizer is dropped
}

// believed is for how long a record that was written need not have been shown. Its
// events are missed when it is deleted again while the watch is broken.
const believed = 30 * time.Second

func newMarks() marks {
	return marks{creations: map[types.NamespacedName]creation{}, records: map[types.UID]mark{}}
}

// create notes that the record of a pod is about to be written.
func (s *marks) create(key types.NamespacedName, pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creations[key] = creation{pod, time.Now()}
}

// creating is for how long it is believed yet that a pod's record was written and is
// about to be shown; 0 or less when it is not.
func (s *marks) creating(key types.NamespacedName, pod types.UID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.creations[key]; c.pod == pod {
		return time.Until(c.at.Add(believed))
	}
	return 0
}

// created ends a creation: its record is shown, or was not written.
func (s *marks) created(key types.NamespacedName, pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.creations[key].pod == pod {
		delete(s.creations, key)
	}
}

// onlyOf forgets what was created for other incarnations of a pod than this one,
// which is empty for none.
func (s *marks) onlyOf(key types.NamespacedName, pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.creations[key]; ok && c.pod != pod {
		delete(s.creations, key)
	}
}

// doubtful forgets the creations that are believed no more, and returns their pods.
func (s *marks) doubtful() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []types.NamespacedName
	for key, c := range s.creations {
		if time.Since(c.at) >= believed {
			delete(s.creations, key)
			out = append(out, key)
		}
	}
	return out
}

func (s *marks) get(uid types.UID) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[uid]
}

// update changes what is remembered of a record. Whoever adds something makes sure
// that the cache has the record afterwards (Attachments.remember).
func (s *marks) update(uid types.UID, change func(*mark)) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.records[uid]
	change(&v)
	if v == (mark{}) {
		delete(s.records, uid)
	} else {
		s.records[uid] = v
	}
	return v
}

func (s *marks) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.creations)
	clear(s.records)
}

func (s *marks) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, uid)
}

// remember changes what is remembered of a record that the cache has. The cache lets
// go of a record before the event that says so is handled, so either that event finds
// what was remembered, or it is forgotten here.
func (r *Attachments) remember(ctx context.Context, record *v1alpha1.PodAttachment, change func(*mark)) mark {
	m := r.marks.update(record.UID, change)
	if !r.shows(ctx, record) {
		r.marks.drop(record.UID)
	}
	return m
}

// shows reports whether the cache has a record.
func (r *Attachments) shows(ctx context.Context, record *v1alpha1.PodAttachment) bool {
	var cached v1alpha1.PodAttachment
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), &cached, client.UnsafeDisableDeepCopy)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return cached.UID == record.UID
}

// left is how much is left of a grace that others have to play their part in the
// release of a record. It began when the release first asked.
func (r *Attachments) left(ctx context.Context, record *v1alpha1.PodAttachment, grace time.Duration) time.Duration {
	now := time.Now()
	m := r.remember(ctx, record, func(m *mark) {
		if m.waitsSince.IsZero() {
			m.waitsSince = now
		}
	})
	return m.waitsSince.Add(grace).Sub(now)
}

// doubts has pods looked at whose record was written and never shown, until ctx ends.
func (r *Attachments) doubts(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	tick := time.NewTicker(believed)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, key := range r.marks.doubtful() {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
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
			r.marks.created(podOf(a), a.OwnUID())
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
			r.marks.created(podOf(a), a.OwnUID())
			r.told.Forget(podOf(a))
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
	return pod.Of(record) == pod.KeyOf(p) && pod.Wants(p)
}
