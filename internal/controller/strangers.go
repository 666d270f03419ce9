package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

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
// word has not come yet. The Node's event brings the pod back at once. p is nil for a pod
// that is gone. Whatever else is not served waits for nothing.
func (r *Attachments) awaitItsNode(ctx context.Context, key types.NamespacedName, p *corev1.Pod, record *v1alpha1.PodAttachment) ctrl.Result {
	if p == nil || record != nil || !pod.Wants(p) {
		if record != nil {
			r.waiting.remove(key)
		}
		r.strangers.remove(key) // what it has obtained is left to leave
		return ctrl.Result{}
	}
	if w, ok := r.waiting.get(key); !ok || w.pod != pod.IdentityOf(p) {
		r.waiting.add(p, nil) // before the look: an event that comes after it finds the pod here
	}
	if known, ours := r.nodeOf(ctx, p); known {
		r.waiting.remove(key)
		r.strangers.remove(key)
		if ours {
			return ctrl.Result{RequeueAfter: time.Millisecond} // it has come in this moment
		}
		return ctrl.Result{}
	}
	if left := r.strangers.left(key, nodeWord); left > 0 {
		return ctrl.Result{RequeueAfter: left}
	}
	of := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	r.told.Tell(of, "", eventNodeUnknown, "EnsureNetwork", fmt.Sprintf(
		"no network yet: there is no Node %q: the pod gets its addresses when there is one; delete it when there will be none", p.Spec.NodeName))
	return ctrl.Result{}
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
