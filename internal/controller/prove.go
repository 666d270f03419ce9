package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
)

// prove looks for a proof in the caches and, before anyone acts on it, at the API server.
// It returns the verdict and the record that it is about; nil if that record is gone.
func (r *Releaser) prove(ctx context.Context, record *v1alpha1.PodAttachment) (proof.Verdict, *v1alpha1.PodAttachment, error) {
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
func (r *Releaser) weighCached(ctx context.Context, record *v1alpha1.PodAttachment) (v proof.Verdict, sure bool, err error) {
	e, err := r.gather(ctx, r.client, record)
	if err != nil {
		return proof.Verdict{}, false, err
	}
	r.fillReported(record, &e)
	v = proof.Weigh(record, e)
	if e.MayChange && (v.Listens || e.Now.Sub(e.LeavingSince) >= nodeAnswer) {
		if e.Reported, err = r.readReport(ctx, record, e); err != nil {
			return proof.Verdict{}, false, err
		}
		v = proof.Weigh(record, e)
	}
	return v, v.Proof == proof.None && v.Lost == !e.LostSince.IsZero(), nil
}

// weighLive weighs the evidence of the API server. It returns the record as the API
// server has it; nil if that is gone.
func (r *Releaser) weighLive(ctx context.Context, record *v1alpha1.PodAttachment) (proof.Verdict, *v1alpha1.PodAttachment, error) {
	live := &v1alpha1.PodAttachment{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(record), live); apierrors.IsNotFound(err) || err == nil && live.UID != record.UID {
		return proof.Verdict{}, nil, nil
	} else if err != nil {
		return proof.Verdict{}, nil, fmt.Errorf("read PodAttachment %s: %w", klog.KObj(record), err)
	}
	e, err := r.gather(ctx, r.live, live)
	if err != nil {
		return proof.Verdict{}, nil, err
	}
	e.Reported = r.noteReport(ctx, live, e.Node, e.Now)
	v := proof.Weigh(live, e)
	r.noteVerdict(ctx, live, v, e)
	return v, live, nil
}

// givenSince reports whether the pod was given something after the deletion of a record
// was asked for. Then this record may be gone, with its node's confirmation, and a later
// record of the same pod may name the same interfaces. That happens if two processes lead
// at once and one is behind. Deletion times have a resolution of one second.
func (r *Releaser) givenSince(record *v1alpha1.PodAttachment) bool {
	return slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool {
		d := r.drivers[i.Driver]
		return d.Evidence.GivenSince != nil && d.Evidence.GivenSince(holderOf(record, i.Name), i, record.DeletionTimestamp.Time)
	})
}

// gather reads the evidence about a record's node from the caches or from the API server.
func (r *Releaser) gather(ctx context.Context, from client.Reader, record *v1alpha1.PodAttachment) (proof.Evidence, error) {
	e := proof.Evidence{Grace: r.grace, Now: r.now()}
	e.LostSince, e.LostAt = r.memory.lossOf(record.UID).Of(record)
	if record.DeletionTimestamp != nil {
		e.LeavingSince = r.remember(ctx, record, func(m *mark) {
			if m.deletionSeen.IsZero() {
				m.deletionSeen = e.Now
			}
		}).deletionSeen
	}
	node := &corev1.Node{}
	err := from.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	switch {
	case err == nil:
		e.Node, e.UnreachableSince = node, r.memory.unreachableSince(node, e.Now)
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
func (r *Releaser) reclaimAfter(ctx context.Context, from client.Reader, record *v1alpha1.PodAttachment) (time.Duration, error) {
	byDriver := map[string][]v1alpha1.Interface{}
	for _, i := range record.Spec.Interfaces {
		byDriver[i.Driver] = append(byDriver[i.Driver], i)
	}
	var longest time.Duration
	for name, interfaces := range byDriver {
		d := r.drivers[name]
		if d.Evidence.ReclaimAfter == nil {
			return 0, nil
		}
		after, err := d.Evidence.ReclaimAfter(ctx, from, interfaces)
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
func (r *Releaser) givenUp(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (yes bool, again time.Duration, err error) {
	if p.DeletionTimestamp == nil {
		return false, 0, nil
	}
	for _, from := range []client.Reader{r.client, r.live} {
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

// fillReported sets in the evidence when the kubelet was seen to report since the record is
// being deleted, and whether the Node has a newer report to evaluate.
func (r *Releaser) fillReported(record *v1alpha1.PodAttachment, e *proof.Evidence) {
	if e.Node == nil {
		return
	}
	p := r.memory.markOf(record.UID).pulse
	if e.MayChange = p.Next(record, e.Node, e.Now) != p; !e.MayChange {
		e.Reported = p.Reported
	}
}

// noteReport evaluates the Node of a record that is being deleted, as the API server has
// it. It returns when the kubelet was seen to report; zero if it was not.
func (r *Releaser) noteReport(ctx context.Context, record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) (reported time.Time) {
	if node == nil {
		return time.Time{}
	}
	return r.remember(ctx, record, func(m *mark) { m.pulse = m.pulse.Next(record, node, now) }).pulse.Reported
}

// readReport evaluates the Node of a record from the API server: the cache may be older
// than the deletion of the record.
func (r *Releaser) readReport(ctx context.Context, record *v1alpha1.PodAttachment, e proof.Evidence) (reported time.Time, err error) {
	node := &corev1.Node{}
	err = r.live.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	if apierrors.IsNotFound(err) || err == nil && node.UID != e.Node.UID {
		return time.Time{}, nil // the cache is behind, and an event will follow
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read Node %s: %w", record.Spec.NodeName, err)
	}
	return r.noteReport(ctx, record, node, e.Now), nil
}

// noteLoss updates the losses from the cached record and its cached Node, on standbys
// too.
func (r *Releaser) noteLoss(ctx context.Context, record *v1alpha1.PodAttachment) {
	known := r.memory.lossOf(record.UID) != proof.LostNode{}
	if foundAt, _ := proof.Loss(record); !known && foundAt == "" {
		return
	}
	node := &corev1.Node{}
	err := r.client.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		node = nil
	case err != nil:
		return // the cache has ended with the program
	}
	r.memory.changeLoss(record.UID, func(l proof.LostNode) proof.LostNode {
		return l.Next(record, proof.Lost(record, node), r.now())
	})
}

// noteVerdict updates the losses from a verdict on what the API server has.
func (r *Releaser) noteVerdict(ctx context.Context, record *v1alpha1.PodAttachment, v proof.Verdict, e proof.Evidence) {
	switch {
	case !v.Lost:
		r.memory.changeLoss(record.UID, func(proof.LostNode) proof.LostNode { return proof.LostNode{} })
	case e.LostSince.IsZero():
		r.memory.changeLoss(record.UID, func(proof.LostNode) proof.LostNode { return proof.FoundLost(e.Now) })
	}
	if !r.shows(ctx, record) {
		r.memory.forgetRecord(record.UID) // as remember does
	}
}

// remember changes the mark of a record and returns it. The cache drops a record before
// the delete event is handled. So either the handler of that event removes the mark, or
// this function sees that the cache has no such record and removes it.
func (r *Releaser) remember(ctx context.Context, record *v1alpha1.PodAttachment, change func(*mark)) mark {
	m := r.memory.changeMark(record.UID, change)
	if !r.shows(ctx, record) {
		r.memory.forgetRecord(record.UID)
	}
	return m
}

// shows reports whether the cache has a record with this UID.
func (r *Releaser) shows(ctx context.Context, record *v1alpha1.PodAttachment) bool {
	var cached v1alpha1.PodAttachment
	err := r.client.Get(ctx, client.ObjectKeyFromObject(record), &cached, client.UnsafeDisableDeepCopy)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return cached.UID == record.UID
}

// reached sets the stage that a release is about to reach. undo sets the former stage
// again.
func (r *Releaser) reached(ctx context.Context, record *v1alpha1.PodAttachment, to stage) (undo func()) {
	var from stage
	r.remember(ctx, record, func(m *mark) { from, m.stage = m.stage, to })
	return func() { r.remember(ctx, record, func(m *mark) { m.stage = from }) }
}

// left returns how much is left of a grace that another program has for its part in the
// release of a record. The grace begins with the first call for the record.
func (r *Releaser) left(ctx context.Context, record *v1alpha1.PodAttachment, grace time.Duration) time.Duration {
	now := time.Now()
	m := r.remember(ctx, record, func(m *mark) {
		if m.waitsSince.IsZero() {
			m.waitsSince = now
		}
	})
	return m.waitsSince.Add(grace).Sub(now)
}
