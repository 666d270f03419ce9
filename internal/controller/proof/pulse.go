package proof

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Pulse records whether this process has seen, at the API server, a report of a node's
// kubelet since a record is being deleted. The times in reports only distinguish one
// report from another: they come from the kubelet's clock, and the time of the deletion
// comes from an API server's.
type Pulse struct {
	// node is the UID of the Node at the first read, and beat is the time of its report
	// then. The zero pulse has no beat.
	node types.UID
	beat int64
	// sandbox is the record's sandbox at that read.
	sandbox string
	// Reported is when this process first saw another report.
	Reported time.Time
}

// pulseAt returns the pulse of the first read of a Node.
func pulseAt(record *v1alpha1.PodAttachment, node *corev1.Node) Pulse {
	p := Pulse{node: node.UID, beat: Readiness(node).LastHeartbeatTime.Unix()} // a zero time gives no 0
	if s := record.Status.Sandbox; s != nil {
		p.sandbox = s.ID + " " + s.BootID
		if s.AttachedAt != nil {
			p.sandbox += fmt.Sprint(" ", s.AttachedAt.UnixMicro()) // without a time zone
		}
	}
	return p
}

// Next returns the pulse after a read of a Node. It begins anew if the Node is another
// one or the record has another sandbox: the last report may be older than these.
func (p Pulse) Next(record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) Pulse {
	at := pulseAt(record, node)
	if p.node != at.node || p.beat == 0 || p.sandbox != at.sandbox {
		return at
	}
	// Kubernetes may have written the report of a node that does not answer.
	if p.Reported.IsZero() && p.beat != at.beat && Readiness(node).Status != corev1.ConditionUnknown {
		p.Reported = now
	}
	return p
}
