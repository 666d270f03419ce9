// Package proof weighs what is known of a node and says whether the interfaces of a
// PodAttachment that is being deleted can still be in use there: evidence in, verdict out.
// Pure functions: no clients, no clock but that of the evidence.
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

// Proof is why the interfaces of a record that is being deleted cannot be in
// use any more; empty when nothing shows it. The values are metric labels.
type Proof string

const (
	// None is no proof.
	None Proof = ""
	// ByWord is that the node said so.
	ByWord Proof = "detached"
	// ByReboot is that the node has booted: no network namespace survives a boot.
	ByReboot Proof = "rebooted"
	// ByFence is that a person or a fencing agent said that the node is off.
	ByFence Proof = "out_of_service"
	// ByDeletion is that the Node object is gone, for longer than the grace.
	ByDeletion Proof = "node_deleted"
	// ByPolicy is that the operator chose not to wait any longer.
	ByPolicy Proof = "reclaimed"
)

const (
	// RebootSettle is how long this process must have seen a record be deleted, and its
	// kubelet have reported since, for a changed boot ID to prove anything. A pod outlives
	// a boot and is plugged again after it; a daemon that did so before it heard of the
	// deletion says so meanwhile.
	RebootSettle = 10 * time.Second
	// clockSlack is how much younger than a record that does not say which Node it was
	// made for a Node must be to be another one: creation times are whole seconds, by the
	// clocks of several API servers, and a new node gets pods at once.
	clockSlack = 10 * time.Second
	// bootRetry is how long until a Node whose boot ID has changed is looked at
	// again, when its kubelet has not yet reported since the sandbox was made.
	bootRetry = time.Minute
)

// Evidence is what there is to know of the node of a record.
type Evidence struct {
	// Node is the Node of that name, nil when there is none.
	Node *corev1.Node
	// ReclaimAfter is the longest of the pools of the record's addresses, 0 when
	// one holds.
	ReclaimAfter time.Duration
	// LeavingSince is when this process first saw that the record is being deleted,
	// unreachableSince that the node does not answer; zero when it does.
	LeavingSince, UnreachableSince time.Time
	// Heard is when this process saw that the node's kubelet had reported since the
	// record was being deleted and said what it says of its sandbox; zero when it did not
	// yet.
	Heard time.Time
	// MayHear says that a look at the Node would tell more of that.
	MayHear bool
	// LostSince is when this process first saw that the Node was not there any
	// more; zero when it did not yet. LostSaid is what the record says of when that was,
	// by the clock of whoever found it: words for people.
	LostSince time.Time
	LostSaid  string
	// Grace is how long a Node must have been gone.
	Grace time.Duration
	Now   time.Time
}

// Verdict is what the evidence comes to.
type Verdict struct {
	// Proof that the interfaces are free, or noProof.
	Proof Proof
	// Text says what proves it, or what is waited for. It changes only when
	// the evidence does.
	Text string
	// Lost says that the Node is not the one that the record was written for.
	Lost bool
	// Well says that nothing is known against the node: its word is due.
	Well bool
	// Listens says that word of the kubelet may change the verdict, now or later.
	Listens bool
	// Again is when time alone may change the verdict; 0 leaves it to events.
	Again time.Duration
}

// Weigh decides whether a record that is being deleted may be released. A
// missing pod, a node that is not ready, a pod that terminates and age are no
// evidence; what cannot be ordered in time is none either.
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

// weighReachable judges by what others say of a Node that is there: a fence, and the
// policy of the pools while it is unreachable.
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
				"node %s has been unreachable since %s, and the policy of its pools is to wait %v: should its pods still be running, an address is now in use twice", e.Node.Name, since, e.ReclaimAfter)}
		}
		return Verdict{Again: wait, Listens: true, Text: fmt.Sprintf(
			"it has been unreachable since %s; by the policy of the pools they are given back after %v, and may then be in use twice", since, e.ReclaimAfter)}
	}
	return Verdict{Well: well, Listens: !well, Text: state(e.Node)}
}

// weighLost judges when the Node is gone, or another has its name.
func weighLost(record *v1alpha1.PodAttachment, e Evidence) Verdict {
	since, said := e.LostSince, e.LostSaid
	if since.IsZero() {
		since, said = e.Now, Stamp(e.Now)
	}
	what := fmt.Sprintf("Node %s was found deleted at %s", record.Spec.NodeName, said)
	if e.Node != nil {
		what = fmt.Sprintf("Node %s was found at %s to have been deleted and made again", record.Spec.NodeName, said)
	}
	if left := e.Grace - e.Now.Sub(since); left > 0 {
		return Verdict{Lost: true, Listens: true, Again: left, Text: fmt.Sprintf("%s; they are given back %v after that", what, e.Grace)}
	}
	if e.Node != nil && e.Heard.IsZero() {
		// The machine that has the name now may have plugged a pod that outlived the
		// former one, and have been cut off before it could say so.
		v := weighReachable(e)
		v.Lost, v.Listens, v.Text = true, true, what+"; "+v.Text
		if v.Proof == None && (v.Again == 0 || v.Again > bootRetry) {
			v.Again = bootRetry
		}
		return v
	}
	return Verdict{Lost: true, Proof: ByDeletion, Text: fmt.Sprintf("%s, more than %v ago", what, e.Grace)}
}

// weighBoot judges by boot IDs. ok is false when they say nothing: they are
// equal, one is not known, or nothing was ever plugged as far as is known.
//
// The Node's must be the newer one: after a boot a sandbox may be made before
// the kubelet has reported. So it must have reported since the record said that. And
// it must have since the record was deleted: a pod that outlived the boot may be
// plugged again by a node that is cut off before it can say so.
func weighBoot(record *v1alpha1.PodAttachment, e Evidence) (v Verdict, ok bool) {
	s := record.Status.Sandbox
	now := e.Node.Status.NodeInfo.BootID
	if s == nil || s.BootID == "" || now == "" || s.BootID == now || s.AttachedAt == nil {
		return Verdict{}, false
	}
	if e.Heard.IsZero() {
		return Verdict{Again: bootRetry, Listens: true, Text: fmt.Sprintf("its boot ID is %s, but its kubelet has not reported since they were to be given back", now)}, true
	}
	since := e.LeavingSince
	if e.Heard.After(since) {
		since = e.Heard
	}
	if left := RebootSettle - e.Now.Sub(since); left > 0 {
		return Verdict{Again: left, Well: true, Text: fmt.Sprintf("it has booted since, boot ID %s", now)}, true
	}
	return Verdict{Proof: ByReboot, Text: fmt.Sprintf("node %s has booted since they were plugged: its boot ID was %s and is %s", e.Node.Name, s.BootID, now)}, true
}

// lossText is how the text of a verdict tells when a Node was found lost.
var lossText = regexp.MustCompile(`was found (?:deleted )?at (\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z)`)

// Loss returns what the condition Released of a record says of when its Node was found
// lost; empty if it says nothing of that. It only tells one loss from another. Speaks is
// false while the condition tells of something else than what is waited for: the giving
// back has begun then, on proof.
func Loss(record *v1alpha1.PodAttachment) (said string, speaks bool) {
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

// Lost reports whether the Node that a record was written for is no more. A
// Node that is another than that but runs the boot that plugged it is the same
// machine, registered again. Of records of former versions, which do not say which
// Node it was, the ages tell.
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

// Fenced reports whether somebody has declared a node to be off. As for
// Kubernetes it counts only while the node is not ready: the taint is easily
// forgotten on a node that has come back.
func Fenced(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// Reclaim reports whether this process has seen a node be unreachable for as long as
// the operator would wait; ok is false when it is reachable or the pools hold.
// Ready is Unknown when Kubernetes has not heard from the kubelet; False is the
// kubelet's own word, of a node that is there.
func Reclaim(e Evidence) (due bool, wait time.Duration, ok bool) {
	ready := Readiness(e.Node)
	if e.ReclaimAfter == 0 || ready.Status != corev1.ConditionUnknown || e.UnreachableSince.IsZero() {
		return false, 0, false
	}
	wait = e.ReclaimAfter - e.Now.Sub(e.UnreachableSince)
	return wait <= 0, max(wait, 0), true
}

// Readiness is a node's condition Ready, zero when it has none.
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

// state says how a node is that has to speak for itself.
func state(node *corev1.Node) string {
	ready := Readiness(node)
	text := "it has not reported yet"
	switch ready.Status {
	case corev1.ConditionTrue:
		text = "it is ready, so its fairlead-node has the word"
		if Fenced(node) {
			text = fmt.Sprintf("it has the taint %s but is ready, so its fairlead-node has the word", corev1.TaintNodeOutOfService)
		}
	case corev1.ConditionFalse:
		text = "it has been not ready since " + Stamp(ready.LastTransitionTime.Time)
	case corev1.ConditionUnknown:
		text = "it has been unreachable since " + Stamp(ready.LastTransitionTime.Time)
	}
	return text + fmt.Sprintf("; in place of its word count a reboot, the taint %s while it is not ready, and the deletion of the Node", corev1.TaintNodeOutOfService)
}

// Stamp is a time for people.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Detached reports whether the node has said, of a record that is being
// deleted, that nothing holds its interfaces any more.
func Detached(record *v1alpha1.PodAttachment) bool {
	return record.DeletionTimestamp != nil && record.Status.Sandbox != nil && record.Status.Sandbox.State == v1alpha1.SandboxDetached
}
