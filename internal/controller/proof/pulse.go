package proof

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Pulse is what this process has seen, at the API server, of the reports of the kubelet
// of a record that is being deleted: whether one has come since. The times in reports
// only tell one from another. They are of the kubelet's clock, and that of the deletion
// is of an API server's.
type Pulse struct {
	// node is the UID of the Node that was looked at first, and beat the report that it
	// had. The zero pulse has no beat.
	node types.UID
	beat int64
	// sandbox is what the record had said of its sandbox by then.
	sandbox string
	// Heard is when this process first saw that another report had come.
	Heard time.Time
}

// pulseAt is the first look at a Node.
func pulseAt(record *v1alpha1.PodAttachment, node *corev1.Node) Pulse {
	p := Pulse{node: node.UID, beat: Readiness(node).LastHeartbeatTime.Unix()} // of no time it is not 0
	if s := record.Status.Sandbox; s != nil {
		p.sandbox = s.ID + " " + s.BootID
		if s.AttachedAt != nil {
			p.sandbox += fmt.Sprint(" ", s.AttachedAt.UnixMicro()) // in no time zone
		}
	}
	return p
}

// Next is the pulse after a look at a Node. Of another Node, or of a record that says
// something else of its sandbox, it is looked at anew: the last report may be of before.
func (p Pulse) Next(record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) Pulse {
	at := pulseAt(record, node)
	if p.node != at.node || p.beat == 0 || p.sandbox != at.sandbox {
		return at
	}
	// Of a node that does not answer Kubernetes may have written a report itself.
	if p.Heard.IsZero() && p.beat != at.beat && Readiness(node).Status != corev1.ConditionUnknown {
		p.Heard = now
	}
	return p
}
