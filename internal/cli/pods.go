package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/pod"
)

// podState is the progress of a pod's network.
type podState string

const (
	// stateAttached: the node has plugged every interface.
	stateAttached podState = "Attached"
	// stateWaiting: the record is written, but some interfaces are not plugged yet.
	stateWaiting podState = "Waiting"
	// stateReleasing: the record is being deleted and its interfaces released.
	stateReleasing podState = "Releasing"
	// stateFailing: an operation failed and is retried.
	stateFailing podState = "Failing"
	// stateNone: the pod wants a network and has no record.
	stateNone podState = "None"
)

// Reasons of this command; the others come from conditions and events.
const (
	reasonNotPlugged  = "NotPlugged"        // the runtime has not asked the node yet
	reasonNotActive   = "NotActive"         // the driver's network does not carry the traffic yet
	reasonInUse       = "NodeNotDone"       // the node has not confirmed that nothing is plugged
	reasonControllers = "ControllerNotDone" // the node has confirmed; the controller has not released the interfaces
	reasonNoRecord    = "NoRecord"          // the controller has written no record and no warning
)

// podList is the output of `pods -o json`.
type podList struct {
	// Pods by namespace and name.
	Pods []podView `json:"pods"`
}

// podView is one pod that has a network, or wants one.
type podView struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// Attachment is the name of the pod's PodAttachment; absent in state None.
	Attachment string          `json:"attachment,omitempty"`
	Interfaces []interfaceView `json:"interfaces"`
	State      podState        `json:"state"`
	// Reason is a word; absent in state Attached. Message explains it; absent if there
	// are no details.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is the time at which the state began; absent if unknown.
	Since *time.Time `json:"since,omitempty"`
	// CreatedAt is the creation time of the pod, or of the record if the pod is gone.
	CreatedAt *time.Time `json:"createdAt,omitempty"`
}

// interfaceView is one interface of a pod.
type interfaceView struct {
	Name      string   `json:"name"`
	Network   string   `json:"network"`
	Addresses []string `json:"addresses"` // in CIDR form
}

// buildPods returns a view of every record, and of every pod on a served node that wants
// a network and has no record.
func buildPods(snap kube.Snapshot) []podView {
	byID := map[pod.Key]*corev1.Pod{}
	for i := range snap.Pods {
		p := &snap.Pods[i]
		byID[pod.KeyOf(p)] = p
	}
	out := []podView{}
	for i := range snap.Attachments {
		a := &snap.Attachments[i]
		out = append(out, recordedPod(a, byID[pod.Of(a)]))
	}
	warnings := latestWarnings(snap.Events)
	for _, p := range kube.WithoutRecord(snap).Here {
		out = append(out, podWithoutRecord(p, warnings[p.UID]))
	}
	slices.SortFunc(out, func(a, b podView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// recordedPod returns the view of a record; p is its pod, or nil.
func recordedPod(a *v1alpha1.PodAttachment, p *corev1.Pod) podView {
	v := podView{
		Namespace:  a.Pod().Namespace,
		Name:       a.Spec.PodName,
		UID:        a.OwnUID(),
		Node:       a.Spec.NodeName,
		Attachment: a.Name,
		Interfaces: []interfaceView{},
		CreatedAt:  output.Timestamp(a.CreationTimestamp.Time),
	}
	if p != nil {
		v.CreatedAt = output.Timestamp(p.CreationTimestamp.Time)
	}
	for _, i := range a.Spec.Interfaces {
		v.Interfaces = append(v.Interfaces, interfaceView{Name: i.Name, Network: i.Network, Addresses: output.List(i.Addresses)})
	}
	setState(&v, a)
	return v
}

// setState sets the state of a record, and the reason.
func setState(v *podView, a *v1alpha1.PodAttachment) {
	ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady)
	released := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReleased)
	sandbox := a.Status.Sandbox
	detached := sandbox != nil && sandbox.State == v1alpha1.SandboxDetached
	switch {
	case releaseFails(released):
		v.setFrom(stateFailing, released)
	case a.DeletionTimestamp != nil && detached:
		v.State, v.Reason, v.Since = stateReleasing, reasonControllers, output.Timestamp(a.DeletionTimestamp.Time)
	case isFalse(released):
		v.setFrom(stateReleasing, released)
	case a.DeletionTimestamp != nil:
		v.State, v.Reason, v.Since = stateReleasing, reasonInUse, output.Timestamp(a.DeletionTimestamp.Time)
		v.Message = fmt.Sprintf("node %s has not confirmed that nothing is plugged", a.Spec.NodeName)
	case sandbox == nil && isFalse(ready):
		v.setFrom(stateFailing, ready)
	case sandbox == nil, detached, sandbox.AttachedAt == nil && !isTrue(ready):
		v.State, v.Reason, v.Since = stateWaiting, waitingFor(a), output.Timestamp(a.CreationTimestamp.Time)
		if isFalse(ready) { // between two sandboxes of one pod
			v.Since = output.Timestamp(ready.LastTransitionTime.Time)
		}
	case lacksInterfaces(ready):
		v.setFrom(stateWaiting, ready)
	case isFalse(ready):
		v.setFrom(stateFailing, ready)
	default:
		v.State, v.Since = stateAttached, attachedSince(sandbox)
	}
}

// attachedSince returns when a sandbox was plugged; nil if the node has lost its record.
func attachedSince(s *v1alpha1.Sandbox) *time.Time {
	if s.AttachedAt == nil {
		return nil
	}
	return output.Timestamp(s.AttachedAt.Time)
}

// releaseFails reports whether the release fails, rather than waits for the node.
func releaseFails(released *metav1.Condition) bool {
	return isFalse(released) && released.Reason != v1alpha1.ReasonWaitingForNode
}

// lacksInterfaces reports whether a sandbox is plugged without some interfaces that the
// runtime has not requested.
func lacksInterfaces(ready *metav1.Condition) bool {
	return isFalse(ready) && ready.Reason == v1alpha1.ReasonInterfacesMissing
}

func isTrue(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }

func isFalse(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionFalse }

// setFrom sets state and explanation from a condition.
func (v *podView) setFrom(state podState, c *metav1.Condition) {
	v.State, v.Reason, v.Message, v.Since = state, c.Reason, c.Message, output.Timestamp(c.LastTransitionTime.Time)
}

// waitingFor returns the reason why a record is not plugged yet.
func waitingFor(a *v1alpha1.PodAttachment) string {
	for _, i := range a.Spec.Interfaces {
		active := slices.ContainsFunc(a.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool { return s.Name == i.Name && s.Active })
		if i.WaitForActive && !active {
			return reasonNotActive
		}
	}
	return reasonNotPlugged
}

// podWithoutRecord returns the view of a pod that waits for the controller; warning is
// the controller's last event about it, or nil.
func podWithoutRecord(p *corev1.Pod, warning *eventsv1.Event) podView {
	v := podView{
		Namespace:  p.Namespace,
		Name:       p.Name,
		UID:        p.UID,
		Node:       p.Spec.NodeName,
		Interfaces: []interfaceView{},
		State:      stateNone,
		Reason:     reasonNoRecord,
		Since:      output.Timestamp(p.CreationTimestamp.Time),
		CreatedAt:  output.Timestamp(p.CreationTimestamp.Time),
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			v.Since = output.Timestamp(c.LastTransitionTime.Time)
		}
	}
	if warning != nil {
		v.Reason, v.Message = warning.Reason, warning.Note
	}
	return v
}

// latestWarnings returns the last event about each pod, by its UID in the API.
func latestWarnings(events []eventsv1.Event) map[types.UID]*eventsv1.Event {
	out := map[types.UID]*eventsv1.Event{}
	for i := range events {
		e := &events[i]
		if last := out[e.Regarding.UID]; last == nil || kube.Seen(e).After(kube.Seen(last)) {
			out[e.Regarding.UID] = e
		}
	}
	return out
}

// podsText returns the table, and below it the messages of the pods. where is the
// requested namespace, or empty for all.
func podsText(v podList, where string, now time.Time) string {
	if len(v.Pods) == 0 {
		if where == "" {
			return "No pods with a network of Fairlead's in any namespace.\n"
		}
		return fmt.Sprintf("No pods with a network of Fairlead's in namespace %s; -A shows all namespaces.\n", where)
	}
	header := []string{"POD", "NODE", "INTERFACES", "ADDRESSES", "STATE", "REASON", "AGE"}
	if where == "" {
		header = append([]string{"NAMESPACE"}, header...)
	}
	rows := [][]string{header}
	var notes []string
	for _, p := range v.Pods {
		row := []string{p.Name, p.Node, p.interfaces(), p.addresses(), string(p.State), p.Reason, output.Age(p.CreatedAt, now)}
		if where == "" {
			row = append([]string{p.Namespace}, row...)
		}
		rows = append(rows, row)
		if p.Message != "" {
			notes = append(notes, fmt.Sprintf("%s: %s: %s", p.fullName(), p.Reason, p.Message))
		}
	}
	return output.Table(rows) + output.Notes(notes)
}

func (v podView) fullName() string { return v.Namespace + "/" + v.Name }

func (v podView) interfaces() string {
	var names []string
	for _, i := range v.Interfaces {
		names = append(names, i.Name)
	}
	return strings.Join(names, ",")
}

// addresses returns the pod's addresses without prefix lengths.
func (v podView) addresses() string {
	var out []string
	for _, i := range v.Interfaces {
		for _, a := range i.Addresses {
			if p, err := netip.ParsePrefix(a); err == nil {
				a = p.Addr().String()
			}
			out = append(out, a)
		}
	}
	return strings.Join(out, ",")
}
