package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// This file measures durations: by this process's own clock, from when this process saw
// something. The times in objects come from the clocks of API servers, kubelets and other
// leaders, which may be wrong and jump.

// deletionSeen returns when this process first saw that a record is being deleted.
func (r *Attachments) deletionSeen(ctx context.Context, record *v1alpha1.PodAttachment, now time.Time) time.Time {
	return r.remember(ctx, record, func(m *mark) {
		if m.deletionSeen.IsZero() {
			m.deletionSeen = now
		}
	}).deletionSeen
}

// unreachableNodes are the nodes that this process sees unreachable, by name.
type unreachableNodes struct {
	mu sync.Mutex
	m  map[string]unreachableNode
}

// unreachableNode is a node whose condition Ready is Unknown.
type unreachableNode struct {
	uid types.UID
	// began is the transition time of that condition. It only distinguishes one outage
	// from another.
	began metav1.Time
	// seen is when this process first saw the outage.
	seen time.Time
}

// since returns when this process first saw the present outage of a node; zero if the
// node is reachable.
func (s *unreachableNodes) since(node *corev1.Node, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := proof.Readiness(node)
	if ready.Status != corev1.ConditionUnknown {
		delete(s.m, node.Name)
		return time.Time{}
	}
	have, ok := s.m[node.Name]
	if !ok || have.uid != node.UID || !have.began.Equal(&ready.LastTransitionTime) {
		have = unreachableNode{node.UID, ready.LastTransitionTime, now}
		s.m[node.Name] = have
	}
	return have.seen
}

// prove looks for a proof in the caches and, before anyone acts on it, at the API server.
// It returns the verdict and the record that it is about; nil if that record is gone.
func (r *Attachments) prove(ctx context.Context, record *v1alpha1.PodAttachment) (proof.Verdict, *v1alpha1.PodAttachment, error) {
	if proof.Detached(record) && !r.givenSince(record) {
		return proof.Weigh(record, proof.Evidence{}), record, nil // final, also if only the cache has it
	}
	v, sure, err := r.weighCached(ctx, record)
	if err != nil || sure {
		return v, record, err
	}
	return r.weighLive(ctx, record)
}

// weighCached weighs the evidence of the caches. sure is true if the API server need not
// be asked: nothing is proved, and the losses agree about whether the Node is lost.
func (r *Attachments) weighCached(ctx context.Context, record *v1alpha1.PodAttachment) (v proof.Verdict, sure bool, err error) {
	e, err := r.gather(ctx, r.Client, record)
	if err != nil {
		return proof.Verdict{}, false, err
	}
	r.fillHeard(record, &e)
	v = proof.Weigh(record, e)
	if e.MayHear && (v.Listens || e.Now.Sub(e.LeavingSince) >= nodeAnswer) {
		if e.Heard, err = r.readReport(ctx, record, e); err != nil {
			return proof.Verdict{}, false, err
		}
		v = proof.Weigh(record, e)
	}
	return v, v.Proof == proof.None && v.Lost == !e.LostSince.IsZero(), nil
}

// weighLive weighs the evidence of the API server. It returns the record as the API
// server has it; nil if that is gone.
func (r *Attachments) weighLive(ctx context.Context, record *v1alpha1.PodAttachment) (proof.Verdict, *v1alpha1.PodAttachment, error) {
	live := &v1alpha1.PodAttachment{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(record), live); apierrors.IsNotFound(err) || err == nil && live.UID != record.UID {
		return proof.Verdict{}, nil, nil
	} else if err != nil {
		return proof.Verdict{}, nil, fmt.Errorf("read PodAttachment %s: %w", klog.KObj(record), err)
	}
	e, err := r.gather(ctx, r.Live, live)
	if err != nil {
		return proof.Verdict{}, nil, err
	}
	e.Heard = r.noteReport(ctx, live, e.Node, e.Now)
	v := proof.Weigh(live, e)
	r.noteVerdict(ctx, live, v, e)
	return v, live, nil
}

// givenSince reports whether the pod was given something after the deletion of a record
// was asked for. Then this record may be gone, with its node's confirmation, and a later
// record of the same pod may name the same interfaces. That happens if two processes lead
// at once and one is behind. Deletion times have a resolution of one second.
func (r *Attachments) givenSince(record *v1alpha1.PodAttachment) bool {
	return slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool {
		d := r.Drivers[i.Driver]
		return d.GivenSince != nil && d.GivenSince(holderOf(record, i.Name), i, record.DeletionTimestamp.Time)
	})
}

// gather reads the evidence about a record's node from the caches or from the API server.
func (r *Attachments) gather(ctx context.Context, from client.Reader, record *v1alpha1.PodAttachment) (proof.Evidence, error) {
	e := proof.Evidence{Grace: r.NodeGrace, Now: r.Now()}
	e.LostSince, e.LostAt = r.losses.of(record)
	if record.DeletionTimestamp != nil {
		e.LeavingSince = r.deletionSeen(ctx, record, e.Now)
	}
	node := &corev1.Node{}
	err := from.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	switch {
	case err == nil:
		e.Node, e.UnreachableSince = node, r.unreachable.since(node, e.Now)
	case !apierrors.IsNotFound(err):
		return proof.Evidence{}, fmt.Errorf("read Node %s: %w", record.Spec.NodeName, err)
	}
	if proof.Readiness(e.Node).Status != corev1.ConditionUnknown {
		return e, nil // the pools' policy is for unreachable nodes
	}
	if e.ReclaimAfter, err = r.reclaimAfter(ctx, from, record); err != nil {
		return proof.Evidence{}, err
	}
	return e, nil
}

// reclaimAfter returns how long the interfaces of a record wait for an unreachable node:
// the longest time of all interfaces. 0 is for ever.
func (r *Attachments) reclaimAfter(ctx context.Context, from client.Reader, record *v1alpha1.PodAttachment) (time.Duration, error) {
	byDriver := map[string][]v1alpha1.Interface{}
	for _, i := range record.Spec.Interfaces {
		byDriver[i.Driver] = append(byDriver[i.Driver], i)
	}
	var longest time.Duration
	for name, interfaces := range byDriver {
		d := r.Drivers[name]
		if d.ReclaimAfter == nil {
			return 0, nil
		}
		after, err := d.ReclaimAfter(ctx, from, interfaces)
		if err != nil {
			return 0, fmt.Errorf("read the policy of driver %s for unreachable nodes: %w", name, err)
		}
		if after == 0 {
			return 0, nil
		}
		longest = max(longest, after)
	}
	return longest, nil
}

// givenUp reports whether the record of a pod that terminates on an unreachable node may
// be deleted before the pod is gone. The pod would be gone only when the node is back,
// and the operator chose to reclaim its addresses. again is the time until the next
// check; 0 if events decide.
func (r *Attachments) givenUp(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (yes bool, again time.Duration, err error) {
	if p.DeletionTimestamp == nil {
		return false, 0, nil
	}
	for _, from := range []client.Reader{r.Client, r.Live} {
		e, err := r.gather(ctx, from, record)
		if err != nil || proof.Lost(record, e.Node) {
			return false, 0, err
		}
		if due, wait, _ := proof.Reclaim(e); !due {
			return false, wait, nil
		}
	}
	return true, 0, nil
}

// fillHeard sets in the evidence when the kubelet was seen to report since the record is
// being deleted, and whether the Node has a newer report to evaluate.
func (r *Attachments) fillHeard(record *v1alpha1.PodAttachment, e *proof.Evidence) {
	if e.Node == nil {
		return
	}
	p := r.marks.get(record.UID).pulse
	if e.MayHear = p.Next(record, e.Node, e.Now) != p; !e.MayHear {
		e.Heard = p.Heard
	}
}

// noteReport evaluates the Node of a record that is being deleted, as the API server has
// it. It returns when the kubelet was seen to report; zero if it was not.
func (r *Attachments) noteReport(ctx context.Context, record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) (heard time.Time) {
	if node == nil {
		return time.Time{}
	}
	return r.remember(ctx, record, func(m *mark) { m.pulse = m.pulse.Next(record, node, now) }).pulse.Heard
}

// readReport evaluates the Node of a record from the API server: the cache may be older
// than the deletion of the record.
func (r *Attachments) readReport(ctx context.Context, record *v1alpha1.PodAttachment, e proof.Evidence) (heard time.Time, err error) {
	node := &corev1.Node{}
	err = r.Live.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	if apierrors.IsNotFound(err) || err == nil && node.UID != e.Node.UID {
		return time.Time{}, nil // the cache is behind, and an event will follow
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read Node %s: %w", record.Spec.NodeName, err)
	}
	return r.noteReport(ctx, record, node, e.Now), nil
}
