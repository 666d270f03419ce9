package ui

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
)

// Story is the life of a pod as the page shows it.
type Story struct {
	// Explained are the steps of "fairlead explain pod".
	Explained any `json:"explained"`
	// Moments by time.
	Moments []Moment `json:"moments"`
}

// Moment is an entry of the time line.
type Moment struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"`
	Text    string    `json:"text,omitempty"`
	Warning bool      `json:"warning,omitempty"`
	Event   bool      `json:"event,omitempty"`
}

// moments returns the time line of the pods and records of one name, with their events.
func moments(snap kube.Snapshot, events []*eventsv1.Event) []Moment {
	out := []Moment{}
	add := func(at time.Time, what, format string, args ...any) {
		if !at.IsZero() {
			out = append(out, Moment{At: at.UTC(), What: what, Text: fmt.Sprintf(format, args...)})
		}
	}
	for i := range snap.Pods {
		bound(&snap.Pods[i], add)
	}
	for i := range snap.Attachments {
		attached(&snap.Attachments[i], add)
	}
	for i := range snap.Pods {
		ready(&snap.Pods[i], add)
	}
	for _, e := range events {
		out = append(out, Moment{At: kube.Seen(e).UTC(), What: e.Reason, Text: e.Note, Warning: e.Type == corev1.EventTypeWarning, Event: true})
	}
	// Most times are whole seconds. Moments of one second stay in the order of a pod's life.
	slices.SortStableFunc(out, func(a, b Moment) int {
		return a.At.Truncate(time.Second).Compare(b.At.Truncate(time.Second))
	})
	return out
}

// adder adds a moment, unless the time is zero.
type adder func(at time.Time, what, format string, args ...any)

func bound(p *corev1.Pod, add adder) {
	add(p.CreationTimestamp.Time, "Created", "")
	add(since(p, corev1.PodScheduled), "Scheduled", "on node %s", p.Spec.NodeName)
}

func ready(p *corev1.Pod, add adder) {
	add(since(p, corev1.PodReady), "Ready", "its containers are ready")
	if p.DeletionTimestamp != nil {
		// The API server adds the grace period to the time of the request.
		add(p.DeletionTimestamp.Time, "Ends", "the end of its grace period")
	}
}

// since returns the time at which a condition became true, zero if it is not.
func since(p *corev1.Pod, kind corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func attached(a *v1alpha1.PodAttachment, add adder) {
	add(a.CreationTimestamp.Time, "Recorded", "%s", a.Spec.Summary.Addresses)
	if s := a.Status.Sandbox; s != nil {
		if s.AttachedAt != nil {
			add(s.AttachedAt.Time, "Plugged", "%s on node %s", a.Spec.Summary.Interfaces, a.Spec.NodeName)
		}
		if s.DetachedAt != nil {
			add(s.DetachedAt.Time, "Unplugged", "nothing on node %s holds the addresses", a.Spec.NodeName)
		}
	}
	if a.DeletionTimestamp != nil {
		add(a.DeletionTimestamp.Time, "Releasing", "the addresses are given back")
	}
}
