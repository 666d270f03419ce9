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

// marks hold, by UID of a record that the cache has, how far this process got with its
// release and since when the release waits. The cache may not show that progress yet. A
// lost mark costs a repeated write or a longer wait, never correctness.
//
// A stage is set before its write and reset if the write fails, since the event may come
// before the reply. Marks are kept only for records that the cache has: the last event of
// any other record may be past, and nothing would remove its mark.
type marks struct {
	mu sync.Mutex
	m  map[types.UID]mark
}

// mark is the progress of one record's release.
type mark struct {
	stage      stage
	waitsSince time.Time // when the release first waited for another program
	// deletionSeen is when this process first saw the record's deletion timestamp.
	deletionSeen time.Time
	pulse        proof.Pulse // of the node since then
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

// update changes the mark of a record and returns it. A caller that adds something must
// check afterwards that the cache has the record (Attachments.remember).
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

// remember changes the mark of a record and returns it. The cache drops a record before
// the delete event is handled. So either the handler of that event removes the mark, or
// this function sees that the cache has no such record and removes it.
func (r *Attachments) remember(ctx context.Context, record *v1alpha1.PodAttachment, change func(*mark)) mark {
	m := r.marks.update(record.UID, change)
	if !r.shows(ctx, record) {
		r.marks.drop(record.UID)
	}
	return m
}

// shows reports whether the cache has a record with this UID.
func (r *Attachments) shows(ctx context.Context, record *v1alpha1.PodAttachment) bool {
	var cached v1alpha1.PodAttachment
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(record), &cached, client.UnsafeDisableDeepCopy)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return cached.UID == record.UID
}

// reached sets the stage that a release is about to reach. undo sets the former stage
// again.
func (r *Attachments) reached(ctx context.Context, record *v1alpha1.PodAttachment, to stage) (undo func()) {
	var from stage
	r.remember(ctx, record, func(m *mark) { from, m.stage = m.stage, to })
	return func() { r.remember(ctx, record, func(m *mark) { m.stage = from }) }
}

// left returns how much is left of a grace that another program has for its part in the
// release of a record. The grace begins with the first call for the record.
func (r *Attachments) left(ctx context.Context, record *v1alpha1.PodAttachment, grace time.Duration) time.Duration {
	now := time.Now()
	m := r.remember(ctx, record, func(m *mark) {
		if m.waitsSince.IsZero() {
			m.waitsSince = now
		}
	})
	return m.waitsSince.Add(grace).Sub(now)
}

// longest returns how long the release has waited that has waited longest, 0 if there is
// none.
func (s *marks) longest(now time.Time) (out time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.m {
		if m.stage != finalizerDropped && !m.waitsSince.IsZero() {
			out = max(out, now.Sub(m.waitsSince))
		}
	}
	return out
}
