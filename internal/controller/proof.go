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
)

// proof is why the interfaces of a record that is being deleted cannot be in
// use any more; empty when nothing shows it. The values are metric labels.
type proof string

const (
	noProof      proof = ""
	detached     proof = "detached"       // the node said so
	rebooted     proof = "rebooted"       // no network namespace survives a boot
	outOfService proof = "out_of_service" // a person or a fencing agent said that the node is off
	nodeDeleted  proof = "node_deleted"   // the Node object is gone, for longer than the grace
	reclaimed    proof = "reclaimed"      // the operator chose not to wait any longer
)

const (
	// rebootSettle is how long this process must have seen a record be deleted, and its
	// kubelet have reported since, for a changed boot ID to prove anything. A pod outlives a boot and is plugged again after it; a daemon
	// that did so before it heard of the deletion says so meanwhile.
	rebootSettle = 10 * time.Second
	// clockSlack is how much younger than a record that does not say which Node it was
	// made for a Node must be to be another one: creation times are whole seconds, by the
	// clocks of several API servers, and a new node gets pods at once.
	clockSlack = 10 * time.Second
	// bootRetry is how long until a Node whose boot ID has changed is looked at
	// again, when its kubelet has not yet reported since the sandbox was made.
	bootRetry = time.Minute
)

// evidence is what there is to know of the node of a record.
type evidence struct {
	// node is the Node of that name, nil when there is none.
	node *corev1.Node
	// reclaimAfter is the longest of the pools of the record's addresses, 0 when
	// one holds.
	reclaimAfter time.Duration
	// leavingSince is when this process first saw that the record is being deleted,
	// unreachableSince that the node does not answer; zero when it does.
	leavingSince, unreachableSince time.Time
	// heard is when this process saw that the node's kubelet had reported since the
	// record was being deleted and said what it says of its sandbox; zero when it did not
	// yet.
	heard time.Time
	// mayHear says that a look at the Node would tell more of that.
	mayHear bool
	// lostSince is when this process first saw that the Node was not there any
	// more; zero when it did not yet.
	lostSince time.Time
	// grace is how long a Node must have been gone.
	grace time.Duration
	now   time.Time
}

// verdict is what the evidence comes to.
type verdict struct {
	// proof that the interfaces are free, or noProof.
	proof proof
	// text says what proves it, or what is waited for. It changes only when
	// the evidence does.
	text string
	// lost says that the Node is not the one that the record was written for.
	lost bool
	// well says that nothing is known against the node: its word is due.
	well bool
	// listens says that word of the kubelet may change the verdict, now or later.
	listens bool
	// again is when time alone may change the verdict; 0 leaves it to events.
	again time.Duration
}

// weigh decides whether a record that is being deleted may be released. A
// missing pod, a node that is not ready, a pod that terminates and age are no
// evidence; what cannot be ordered in time is none either.
func weigh(record *v1alpha1.PodAttachment, e evidence) verdict {
	if Detached(record) {
		return verdict{proof: detached, text: "the node has confirmed that nothing holds them"}
	}
	if lost(record, e.node) {
		return weighLost(record, e)
	}
	if v, ok := weighBoot(record, e); ok {
		return v
	}
	return weighReachable(e)
}

// weighReachable judges by what others say of a Node that is there: a fence, and the
// policy of the pools while it is unreachable.
func weighReachable(e evidence) verdict {
	ready := readiness(e.node)
	well := ready.Status == corev1.ConditionTrue && !fenced(e.node)
	if fenced(e.node) && ready.Status != corev1.ConditionTrue {
		return verdict{proof: outOfService, text: fmt.Sprintf("node %s is not ready and has the taint %s", e.node.Name, corev1.TaintNodeOutOfService)}
	}
	if due, wait, ok := reclaim(e); ok {
		since := stamp(ready.LastTransitionTime.Time)
		if due {
			return verdict{proof: reclaimed, text: fmt.Sprintf(
				"node %s has been unreachable since %s, and the policy of its pools is to wait %v: should its pods still be running, an address is now in use twice", e.node.Name, since, e.reclaimAfter)}
		}
		return verdict{again: wait, listens: true, text: fmt.Sprintf(
			"it has been unreachable since %s; by the policy of the pools they are given back after %v, and may then be in use twice", since, e.reclaimAfter)}
	}
	return verdict{well: well, listens: !well, text: state(e.node)}
}

// weighLost judges when the Node is gone, or another has its name.
func weighLost(record *v1alpha1.PodAttachment, e evidence) verdict {
	since := e.lostSince
	if since.IsZero() {
		since = e.now
	}
	what := fmt.Sprintf("Node %s was found deleted at %s", record.Spec.NodeName, stamp(since))
	if e.node != nil {
		what = fmt.Sprintf("Node %s was found at %s to have been deleted and made again", record.Spec.NodeName, stamp(since))
	}
	if left := e.grace - e.now.Sub(since); left > 0 {
		return verdict{lost: true, listens: true, again: left, text: fmt.Sprintf("%s; they are given back %v after that", what, e.grace)}
	}
	if e.node != nil && e.heard.IsZero() {
		// The machine that has the name now may have plugged a pod that outlived the
		// former one, and have been cut off before it could say so.
		v := weighReachable(e)
		v.lost, v.listens = true, true
		if v.proof == noProof && (v.again == 0 || v.again > bootRetry) {
			v.again = bootRetry
		}
		return v
	}
	return verdict{lost: true, proof: nodeDeleted, text: fmt.Sprintf("%s, more than %v ago", what, e.grace)}
}

// weighBoot judges by boot IDs. ok is false when they say nothing: they are
// equal, one is not known, or nothing was ever plugged as far as is known.
//
// The Node's must be the newer one: after a boot a sandbox may be made before
// the kubelet has reported. So it must have reported since the record said that. And
// it must have since the record was deleted: a pod that outlived the boot may be
// plugged again by a node that is cut off before it can say so.
func weighBoot(record *v1alpha1.PodAttachment, e evidence) (v verdict, ok bool) {
	s := record.Status.Sandbox
	now := e.node.Status.NodeInfo.BootID
	if s == nil || s.BootID == "" || now == "" || s.BootID == now || s.AttachedAt == nil {
		return verdict{}, false
	}
	if e.heard.IsZero() {
		return verdict{again: bootRetry, listens: true, text: fmt.Sprintf("its boot ID is %s, but its kubelet has not reported since they were to be given back", now)}, true
	}
	since := e.leavingSince
	if e.heard.After(since) {
		since = e.heard
	}
	if left := rebootSettle - e.now.Sub(since); left > 0 {
		return verdict{again: left, well: true, text: fmt.Sprintf("it has booted since, boot ID %s", now)}, true
	}
	return verdict{proof: rebooted, text: fmt.Sprintf("node %s has booted since they were plugged: its boot ID was %s and is %s", e.node.Name, s.BootID, now)}, true
}

// lost reports whether the Node that a record was written for is no more. A
// Node that is another than that but runs the boot that plugged it is the same
// machine, registered again. Of records of former versions, which do not say which
// Node it was, the ages tell.
func lost(record *v1alpha1.PodAttachment, node *corev1.Node) bool {
	if node == nil {
		return true
	}
	if s := record.Status.Sandbox; s != nil && s.BootID != "" && s.BootID == node.Status.NodeInfo.BootID {
		return false
	}
	if record.Spec.NodeUID != "" {
		return record.Spec.NodeUID != node.UID
	}
	return node.CreationTimestamp.After(record.CreationTimestamp.Add(clockSlack))
}

// fenced reports whether somebody has declared a node to be off. As for
// Kubernetes it counts only while the node is not ready: the taint is easily
// forgotten on a node that has come back.
func fenced(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// reclaim reports whether this process has seen a node be unreachable for as long as
// the operator would wait; ok is false when it is reachable or the pools hold.
// Ready is Unknown when Kubernetes has not heard from the kubelet; False is the
// kubelet's own word, of a node that is there.
func reclaim(e evidence) (due bool, wait time.Duration, ok bool) {
	ready := readiness(e.node)
	if e.reclaimAfter == 0 || ready.Status != corev1.ConditionUnknown || e.unreachableSince.IsZero() {
		return false, 0, false
	}
	wait = e.reclaimAfter - e.now.Sub(e.unreachableSince)
	return wait <= 0, max(wait, 0), true
}

// readiness is a node's condition Ready, zero when it has none.
func readiness(node *corev1.Node) corev1.NodeCondition {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

// state says how a node is that has to speak for itself.
func state(node *corev1.Node) string {
	ready := readiness(node)
	text := "it has not reported yet"
	switch ready.Status {
	case corev1.ConditionTrue:
		text = "it is ready, so its fairlead-node has the word"
		if fenced(node) {
			text = fmt.Sprintf("it has the taint %s but is ready, so its fairlead-node has the word", corev1.TaintNodeOutOfService)
		}
	case corev1.ConditionFalse:
		text = "it has been not ready since " + stamp(ready.LastTransitionTime.Time)
	case corev1.ConditionUnknown:
		text = "it has been unreachable since " + stamp(ready.LastTransitionTime.Time)
	}
	return text + fmt.Sprintf("; in place of its word count a reboot, the taint %s while it is not ready, and the deletion of the Node", corev1.TaintNodeOutOfService)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// prove looks for proof, first in the caches and then, before any of it is
// acted on, at the API server. It returns the record that it judged by, nil
// when that is gone.
func (r *Attachments) prove(ctx context.Context, record *v1alpha1.PodAttachment) (verdict, *v1alpha1.PodAttachment, error) {
	if Detached(record) && !r.givenSince(record) {
		return weigh(record, evidence{}), record, nil // final, whoever tells it
	}
	e, err := r.gather(ctx, r.Client, record)
	if err != nil {
		return verdict{}, nil, err
	}
	r.overhear(record, &e)
	known, v := !e.lostSince.IsZero(), weigh(record, e)
	if e.mayHear && (v.listens || e.now.Sub(e.leavingSince) >= nodeAnswer) {
		if e.heard, err = r.listen(ctx, record, e); err != nil {
			return verdict{}, nil, err
		}
		v = weigh(record, e)
	}
	if v.proof == noProof && v.lost == known {
		return v, record, nil
	}
	live := &v1alpha1.PodAttachment{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(record), live); apierrors.IsNotFound(err) || err == nil && live.UID != record.UID {
		return verdict{}, nil, nil
	} else if err != nil {
		return verdict{}, nil, fmt.Errorf("read PodAttachment %s: %w", klog.KObj(record), err)
	}
	if e, err = r.gather(ctx, r.Live, live); err != nil {
		return verdict{}, nil, err
	}
	e.heard = r.hear(ctx, live, e.node, e.now)
	v = weigh(live, e)
	if v.lost != known {
		r.remember(ctx, record, func(m *mark) {
			m.lostSince = time.Time{}
			if v.lost {
				m.lostSince = e.now
			}
		})
	}
	return v, live, nil
}

// givenSince reports whether the pod was given something after the deletion of a
// record was asked for. Then the record may be gone, the word of its node with it,
// and a later one of the same pod name what this one names: two leaders at once do
// so, of whom one is behind. Deletions are known to the second.
func (r *Attachments) givenSince(record *v1alpha1.PodAttachment) bool {
	return slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool {
		d := r.Drivers[i.Driver]
		return d.GivenSince != nil && d.GivenSince(holderOf(record, i.Name), i, record.DeletionTimestamp.Time)
	})
}

// gather reads what there is to know of a record's node.
func (r *Attachments) gather(ctx context.Context, from client.Reader, record *v1alpha1.PodAttachment) (evidence, error) {
	e := evidence{grace: r.NodeGrace, lostSince: r.marks.get(record.UID).lostSince, now: r.Now()}
	if record.DeletionTimestamp != nil {
		e.leavingSince = r.leavingSince(ctx, record, e.now)
	}
	node := &corev1.Node{}
	err := from.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	switch {
	case err == nil:
		e.node, e.unreachableSince = node, r.silences.since(node, e.now)
	case !apierrors.IsNotFound(err):
		return evidence{}, fmt.Errorf("read Node %s: %w", record.Spec.NodeName, err)
	}
	if readiness(e.node).Status != corev1.ConditionUnknown {
		return e, nil // the pools' policy is for nodes that are unreachable
	}
	if e.reclaimAfter, err = r.reclaimAfter(ctx, from, record); err != nil {
		return evidence{}, err
	}
	return e, nil
}

// reclaimAfter is how long the interfaces of a record wait for a node that is unreachable:
// as long as the one that waits longest; 0 is for ever.
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

// givenUp reports whether the record of a pod that terminates on an unreachable
// node may be deleted before the pod is gone, which it will not be until the
// node is back: the operator chose to reclaim its addresses. again is when to
// look once more.
func (r *Attachments) givenUp(ctx context.Context, record *v1alpha1.PodAttachment, p *corev1.Pod) (yes bool, again time.Duration, err error) {
	if p.DeletionTimestamp == nil {
		return false, 0, nil
	}
	for _, from := range []client.Reader{r.Client, r.Live} {
		e, err := r.gather(ctx, from, record)
		if err != nil || lost(record, e.node) {
			return false, 0, err
		}
		if due, wait, _ := reclaim(e); !due {
			return false, wait, nil
		}
	}
	return true, 0, nil
}
