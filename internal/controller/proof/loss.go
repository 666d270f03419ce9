package proof

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// LostNode is the loss of a record's Node, as this process has seen it; zero if the Node is
// not known to be lost. A standby notes it too and goes on measuring when it becomes the
// leader (ADR 0018).
//
// A leader that finds a Node lost writes so into the record's condition. Every process
// measures from when it first saw both that condition and the missing Node. It begins
// anew if the condition changes or if it sees the Node again, since another leader may
// have seen more. Therefore no clock of another process matters, and a process that began
// later waits longer.
type LostNode struct {
	// foundAt is the time that the record's condition shows for the loss, or will show.
	// It only distinguishes one loss from another.
	foundAt string
	// since is when this process first saw it.
	since time.Time
	// shown is true if the cache has shown the record with that condition.
	shown bool
}

// FoundLost returns the loss of a Node that this process, as the leader, has found lost.
func FoundLost(now time.Time) LostNode { return LostNode{foundAt: Stamp(now), since: now} }

// Shown returns the loss if the cache has shown it, and otherwise none.
func (l LostNode) Shown() LostNode {
	if !l.shown {
		return LostNode{}
	}
	return l
}

// Next returns the loss after the cache has shown a record; lost is true if its Node is
// lost.
func (l LostNode) Next(record *v1alpha1.PodAttachment, lost bool, now time.Time) LostNode {
	foundAt, waits := Loss(record)
	switch {
	case !lost:
		return LostNode{}
	case !waits:
		return l
	case foundAt == "" && l.shown: // another leader has seen the Node since
		return LostNode{}
	case foundAt == "":
		return l
	case l.foundAt == foundAt:
		l.shown = true
		return l
	default:
		return LostNode{foundAt: foundAt, since: now, shown: true}
	}
}

// Of returns since when a record's Node is known to be lost, and the time that the record's
// condition shows for the loss. Both are zero if the loss is not known, or if the record,
// as the API server has it, shows another one.
func (l LostNode) Of(record *v1alpha1.PodAttachment) (since time.Time, foundAt string) {
	if shown, waits := Loss(record); l.shown && waits && shown != l.foundAt {
		return time.Time{}, ""
	}
	return l.since, l.foundAt
}

// Outage is the outage of a node whose condition Ready is Unknown; zero if it is another.
type Outage struct {
	node types.UID
	// began is the transition time of that condition. It only distinguishes one outage
	// from another.
	began metav1.Time
	// Seen is when this process first saw the outage.
	Seen time.Time
}

// Next returns the outage after a look at the node.
func (o Outage) Next(node *corev1.Node, now time.Time) Outage {
	ready := Readiness(node)
	switch {
	case ready.Status != corev1.ConditionUnknown:
		return Outage{}
	case o.Seen.IsZero() || o.node != node.UID || !o.began.Equal(&ready.LastTransitionTime):
		return Outage{node.UID, ready.LastTransitionTime, now}
	default:
		return o
	}
}
