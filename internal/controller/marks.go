package controller

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// marks are what this process remembers of the release of records that its cache has, by
// their UID: how far it got, which the cache may not show yet, and since when it waits.
// Losing a mark costs a repeated write or a longer wait, never correctness.
//
// A stage is noted before its write and taken back when the write fails: the event may
// come before the reply. Nothing is remembered of what the cache does not have any more:
// its last event may have come before.
type marks struct {
	mu sync.Mutex
	m  map[types.UID]mark
}

// mark is what is remembered of a record.
type mark struct {
	stage      stage
	waitsSince time.Time // when its release first waited for others
	// leavingSince is when the record was first seen to be being deleted.
	leavingSince time.Time
	pulse        proof.Pulse // of its node since then
}

// stage is how far this process has got with the release of a record. A release goes
// through the stages in their order.
type stage int

const (
	untouched        stage = iota
	deletionAsked          // the record's deletion is asked for
	givenBack              // its interfaces are given back
	finalizerDropped       // nothing keeps the record any more
)

func (s *marks) get(uid types.UID) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[uid]
}

// update changes what is remembered of a record. Whoever adds something makes sure
// that the cache has the record afterwards (Attachments.remember).
func (s *marks) update(uid types.UID, change func(*mark)) mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.m[uid]
	change(&v)
	if v == (mark{}) {
		delete(s.m, uid)
	} else {
		s.m[uid] = v
	}
	return v
}

func (s *marks) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.m)
}

func (s *marks) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, uid)
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

// reached notes that the release of a record is about to reach a stage, and returns what
// takes that back.
func (r *Attachments) reached(ctx context.Context, record *v1alpha1.PodAttachment, to stage) (undo func()) {
	var from stage
	r.remember(ctx, record, func(m *mark) { from, m.stage = m.stage, to })
	return func() { r.remember(ctx, record, func(m *mark) { m.stage = from }) }
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

// Remembered is how many things the reconciler remembers, by kind.
func (r *Attachments) Remembered() map[string]int {
	return map[string]int{
		"creations": r.creations.size(), "releases": r.marks.size(),
		"pods_with_records": r.names.size(), "waiting_pods": r.waiting.size(),
		"pods_without_node": r.strangers.size(), "unreachable_nodes": r.silences.size(),
		"lost_nodes": r.losses.size(),
	}
}

func (s *marks) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}
