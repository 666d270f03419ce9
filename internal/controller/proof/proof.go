// Package proof decides from the evidence about a node whether the interfaces of a
// PodAttachment that is being deleted can still be in use there. Its functions are pure:
// they have no client, and no clock other than the evidence's.
package proof

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Proof is the reason why the interfaces of a record that is being deleted cannot be in
// use any more; empty if nothing proves it. The values are metric labels.
type Proof string

const (
	// None is no proof.
	None Proof = ""
	// ByWord means that the node has written Detached.
	ByWord Proof = "detached"
	// ByReboot means that the node has booted: no network namespace survives a boot.
	ByReboot Proof = "rebooted"
	// ByFence means that a person or a fencing agent has declared the node to be off.
	ByFence Proof = "out_of_service"
	// ByDeletion means that the Node object is gone for longer than the grace.
	ByDeletion Proof = "node_deleted"
	// ByPolicy means that the operator chose not to wait any longer.
	ByPolicy Proof = "reclaimed"
)

// All are the proofs.
var All = []Proof{ByWord, ByReboot, ByFence, ByDeletion, ByPolicy}

const (
	// RebootLag is how long this process must have seen the record's deletion and a
	// later report of the kubelet before a changed boot ID is a proof. A pod may outlive
	// a boot and be plugged again after it. A daemon that plugged it before it saw the
	// deletion writes so meanwhile.
	RebootLag = 10 * time.Second
	// clockSlack applies to records without the UID of their Node. A Node that is younger
	// than the record by more than clockSlack is not the Node that the record was made
	// for. Creation times are whole seconds by the clocks of several API servers, and a
	// new node gets pods at once.
	clockSlack = 10 * time.Second
	// bootRetry is the pause between two tries if a Node's boot ID has changed, but its
	// kubelet has not reported since the sandbox was made.
	bootRetry = time.Minute
)

// Evidence is all that is known about the node of a record.
type Evidence struct {
	// Node has the name in the record; nil if there is no such Node.
	Node *corev1.Node
	// ReclaimAfter is the longest time among the pools of the record's addresses; 0 if
	// one of them holds addresses for ever.
	ReclaimAfter time.Duration
	// LeavingSince is when this process first saw that the record is being deleted.
	// UnreachableSince is when it first saw that the node does not answer; zero if it
	// answers.
	LeavingSince, UnreachableSince time.Time
	// Reported is when this process saw a report of the kubelet that is later than both the
	// record's deletion and the present state of its sandbox; zero if it saw none yet.
	Reported time.Time
	// MayChange is true if reading the Node again may change Reported.
	MayChange bool
	// LostSince is when this process first saw that the Node was gone; zero if it did not
	// yet. LostAt is the time that the record's condition shows for that, by the clock
	// of the process that found it: text for people.
	LostSince time.Time
	LostAt    string
	// Grace is how long a Node must have been gone.
	Grace time.Duration
	Now   time.Time
}

// Verdict is the result of weighing the evidence.
type Verdict struct {
	// Proof that the interfaces are free, or None.
	Proof Proof
	// Text describes the proof, or the event that is waited for. It changes only if the
	// evidence changes.
	Text string
	// Lost is true if the record was written for another Node than the present one, if
	// any.
	Lost bool
	// Well is true if nothing is known against the node: it will confirm soon.
	Well bool
	// Listens is true if a report of the kubelet may change the verdict, now or later.
	Listens bool
	// Due is when time alone may change the verdict; 0 if only events can.
	Due time.Duration
}

// Weigh decides whether a record that is being deleted may be released. A missing pod, a
// node that is not ready, a pod that terminates and age are no evidence. Facts whose
// order in time is unknown are no evidence either.
func Weigh(record *v1alpha1.PodAttachment, e Evidence) Verdict {
	if Detached(record) {
		return Verdict{Proof: ByWord, Text: "the node has confirmed that nothing holds them"}
	}
	if Lost(record, e.Node) {
		return weighLost(record, e)
	}
	if v, ok := weighBoot(record, e); ok {
		return v
	}
	return weighReachable(e)
}

// weighReachable weighs a Node that exists by its fence, and by the policy of the pools
// while it is unreachable.
func weighReachable(e Evidence) Verdict {
	ready := Readiness(e.Node)
	well := ready.Status == corev1.ConditionTrue && !Fenced(e.Node)
	if Fenced(e.Node) && ready.Status != corev1.ConditionTrue {
		return Verdict{Proof: ByFence, Text: fmt.Sprintf("node %s is not ready and has the taint %s", e.Node.Name, corev1.TaintNodeOutOfService)}
	}
	if due, wait, ok := Reclaim(e); ok {
		since := Stamp(ready.LastTransitionTime.Time)
		if due {
			return Verdict{Proof: ByPolicy, Text: fmt.Sprintf(
				"node %s has been unreachable since %s, and the policy of its pools is to wait %v: if its pods still run, an address is now in use twice", e.Node.Name, since, e.ReclaimAfter)}
		}
		return Verdict{Due: wait, Listens: true, Text: fmt.Sprintf(
			"it has been unreachable since %s; by the policy of the pools they are given back after %v, and may then be in use twice", since, e.ReclaimAfter)}
	}
	return Verdict{Well: well, Listens: !well, Text: state(e.Node)}
}

// weighLost weighs if the Node is gone, or another Node has its name.
func weighLost(record *v1alpha1.PodAttachment, e Evidence) Verdict {
	since, foundAt := e.LostSince, e.LostAt
	if since.IsZero() {
		since, foundAt = e.Now, Stamp(e.Now)
	}
	what := fmt.Sprintf("Node %s was found deleted at %s", record.Spec.NodeName, foundAt)
	if e.Node != nil {
		what = fmt.Sprintf("Node %s was found at %s to have been deleted and made again", record.Spec.NodeName, foundAt)
	}
	if left := e.Grace - e.Now.Sub(since); left > 0 {
		return Verdict{Lost: true, Listens: true, Due: left, Text: fmt.Sprintf("%s; they are given back %v after that", what, e.Grace)}
	}
	if e.Node != nil && e.Reported.IsZero() {
		// The machine that has the name now may have plugged a pod that outlived the
		// former Node, and have been cut off before it could write so.
		v := weighReachable(e)
		v.Lost, v.Listens, v.Text = true, true, what+"; "+v.Text
		if v.Proof == None && (v.Due == 0 || v.Due > bootRetry) {
			v.Due = bootRetry
		}
		return v
	}
	return Verdict{Lost: true, Proof: ByDeletion, Text: fmt.Sprintf("%s, more than %v ago", what, e.Grace)}
}

// weighBoot judges by boot IDs. ok is false if they prove nothing: they are equal, one is
// not known, or nothing was ever plugged as far as is known.
//
// The Node's boot ID must be the newer one: after a boot a sandbox may be made before the
// kubelet has reported. So the kubelet must have reported since the record got its boot
// ID. It must also have reported since the record was deleted: a node may plug a pod that
// outlived the boot again, and be cut off before it can write so.
func weighBoot(record *v1alpha1.PodAttachment, e Evidence) (v Verdict, ok bool) {
	s := record.Status.Sandbox
	now := e.Node.Status.NodeInfo.BootID
	if s == nil || s.BootID == "" || now == "" || s.BootID == now || s.AttachedAt == nil {
		return Verdict{}, false
	}
	if e.Reported.IsZero() {
		return Verdict{Due: bootRetry, Listens: true, Text: fmt.Sprintf("its boot ID is %s, but its kubelet has not reported since they were to be given back", now)}, true
	}
	since := e.LeavingSince
	if e.Reported.After(since) {
		since = e.Reported
	}
	if left := RebootLag - e.Now.Sub(since); left > 0 {
		return Verdict{Due: left, Well: true, Text: fmt.Sprintf("it has booted since, boot ID %s", now)}, true
	}
	return Verdict{Proof: ByReboot, Text: fmt.Sprintf("node %s has booted since they were plugged: its boot ID was %s and is %s", e.Node.Name, s.BootID, now)}, true
}

// lossText finds in the text of a verdict when a Node was found lost.
var lossText = regexp.MustCompile(`was found (?:deleted )?at (\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z)`)

// Loss returns the time that a record's condition Released shows for the loss of its
// Node; empty if it shows none. The time only distinguishes one loss from another. waits
// is false if the condition is about something other than waiting for the node: then a
// proof was found and the release has begun.
func Loss(record *v1alpha1.PodAttachment) (foundAt string, waits bool) {
	c := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased)
	if c == nil {
		return "", true
	}
	if c.Reason != v1alpha1.ReasonWaitingForNode {
		return "", false
	}
	if m := lossText.FindStringSubmatch(c.Message); m != nil {
		return m[1], true
	}
	return "", true
}

// Lost reports whether the Node that a record was written for is gone. Another Node that
// runs the boot of the record's sandbox is the same machine, registered again. Records of
// former versions have no Node UID; for them the creation times decide.
func Lost(record *v1alpha1.PodAttachment, node *corev1.Node) bool {
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

// Fenced reports whether a node has the taint that declares it to be off. As for
// Kubernetes, the taint counts only while the node is not ready: it is easily forgotten
// on a node that has come back.
func Fenced(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// Reclaim reports whether this process has seen a node unreachable for as long as the
// operator would wait, and otherwise how long to wait. ok is false if the node is
// reachable or the pools hold their addresses. The condition Ready is Unknown if
// Kubernetes does not hear from the kubelet. False comes from the kubelet itself, so the
// node is there.
func Reclaim(e Evidence) (due bool, wait time.Duration, ok bool) {
	ready := Readiness(e.Node)
	if e.ReclaimAfter == 0 || ready.Status != corev1.ConditionUnknown || e.UnreachableSince.IsZero() {
		return false, 0, false
	}
	wait = e.ReclaimAfter - e.Now.Sub(e.UnreachableSince)
	return wait <= 0, max(wait, 0), true
}

// Readiness returns a node's condition Ready; zero if it has none.
func Readiness(node *corev1.Node) corev1.NodeCondition {
	if node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

// state describes a node that has to confirm by itself.
func state(node *corev1.Node) string {
	ready := Readiness(node)
	text := "it has not reported yet"
	switch ready.Status {
	case corev1.ConditionTrue:
		text = "it is ready, so its fairlead-node must confirm"
		if Fenced(node) {
			text = fmt.Sprintf("it has the taint %s but is ready, so its fairlead-node must confirm", corev1.TaintNodeOutOfService)
		}
	case corev1.ConditionFalse:
		text = "it has been not ready since " + Stamp(ready.LastTransitionTime.Time)
	case corev1.ConditionUnknown:
		text = "it has been unreachable since " + Stamp(ready.LastTransitionTime.Time)
	}
	return text + fmt.Sprintf("; its confirmation can be replaced by a reboot, the taint %s while it is not ready, or the deletion of the Node", corev1.TaintNodeOutOfService)
}

// Stamp formats a time for people: UTC, RFC 3339.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Detached reports whether a record is being deleted and its node has confirmed that
// nothing holds its interfaces any more.
func Detached(record *v1alpha1.PodAttachment) bool {
	return record.DeletionTimestamp != nil && record.Status.Sandbox != nil && record.Status.Sandbox.State == v1alpha1.SandboxDetached
}
