package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// pulse is what this process has seen, at the API server, of the reports of the kubelet
// of a record that is being deleted: whether one has come since. The times in reports
// only tell one from another. They are of the kubelet's clock, and that of the deletion
// is of an API server's.
type pulse struct {
	// node is the UID of the Node that was looked at first, and beat the report that it
	// had. The zero pulse has no beat.
	node types.UID
	beat int64
	// sandbox is what the record had said of its sandbox by then.
	sandbox string
	// heard is when this process first saw that another report had come.
	heard time.Time
}

// pulseAt is the first look at a Node.
func pulseAt(record *v1alpha1.PodAttachment, node *corev1.Node) pulse {
	p := pulse{node: node.UID, beat: readiness(node).LastHeartbeatTime.Unix()} // of no time it is not 0
	if s := record.Status.Sandbox; s != nil {
		p.sandbox = s.ID + " " + s.BootID
		if s.AttachedAt != nil {
			p.sandbox += fmt.Sprint(" ", s.AttachedAt.UnixMicro()) // in no time zone
		}
	}
	return p
}

// next is the pulse after a look at a Node. Of another Node, or of a record that says
// something else of its sandbox, it is looked at anew: the last report may be of before.
func (p pulse) next(record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) pulse {
	at := pulseAt(record, node)
	if p.node != at.node || p.beat == 0 || p.sandbox != at.sandbox {
		return at
	}
	// Of a node that does not answer Kubernetes may have written a report itself.
	if p.heard.IsZero() && p.beat != at.beat && readiness(node).Status != corev1.ConditionUnknown {
		p.heard = now
	}
	return p
}

// overhear notes in the evidence what this process knows of the kubelet's reports since
// the record is being deleted, and whether a look at the API server may tell more.
func (r *Attachments) overhear(record *v1alpha1.PodAttachment, e *evidence) {
	if e.node == nil {
		return
	}
	p := r.marks.get(record.UID).pulse
	if e.mayHear = p.next(record, e.node, e.now) != p; !e.mayHear {
		e.heard = p.heard
	}
}

// hear is a look at the Node of a record that is being deleted, as it is at the API
// server.
func (r *Attachments) hear(ctx context.Context, record *v1alpha1.PodAttachment, node *corev1.Node, now time.Time) (heard time.Time) {
	if node == nil {
		return time.Time{}
	}
	return r.remember(ctx, record, func(m *mark) { m.pulse = m.pulse.next(record, node, now) }).pulse.heard
}

// listen looks at the Node of a record at the API server: a cache may be behind the
// deletion of the record.
func (r *Attachments) listen(ctx context.Context, record *v1alpha1.PodAttachment, e evidence) (heard time.Time, err error) {
	node := &corev1.Node{}
	err = r.Live.Get(ctx, client.ObjectKey{Name: record.Spec.NodeName}, node)
	if apierrors.IsNotFound(err) || err == nil && node.UID != e.node.UID {
		return time.Time{}, nil // the cache is behind, and word of it is coming
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read Node %s: %w", record.Spec.NodeName, err)
	}
	return r.hear(ctx, record, node, e.now), nil
}
