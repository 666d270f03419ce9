package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// This file has from when durations are measured: from what this process saw, by its own
// clock. The times in objects are of the clocks of API servers, kubelets and other
// leaders, which may be wrong and jump.

// leavingSince is when this process first saw that a record is being deleted.
func (r *Attachments) leavingSince(ctx context.Context, record *v1alpha1.PodAttachment, now time.Time) time.Time {
	return r.remember(ctx, record, func(m *mark) {
		if m.leavingSince.IsZero() {
			m.leavingSince = now
		}
	}).leavingSince
}

// silences are the nodes that this process sees unreachable, by name.
type silences struct {
	mu sync.Mutex
	m  map[string]silence
}

// silence of a node.
type silence struct {
	uid types.UID
	// began is what the Node says of when it began. It only tells one silence from
	// another.
	began metav1.Time
	// seen is when this process first saw it.
	seen time.Time
}

// since is when this process first saw that a node is unreachable, as it is still; zero
// when it is not.
func (s *silences) since(node *corev1.Node, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := proof.Readiness(node)
	if ready.Status != corev1.ConditionUnknown {
		delete(s.m, node.Name)
		return time.Time{}
	}
	have, ok := s.m[node.Name]
	if !ok || have.uid != node.UID || !have.began.Equal(&ready.LastTransitionTime) {
		have = silence{node.UID, ready.LastTransitionTime, now}
		s.m[node.Name] = have
	}
	return have.seen
}

// forgets drops what is known of Nodes that are gone.
func (s *silences) forgets() handler.EventHandler {
	return handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.m, e.Object.GetName())
	}}
}
