package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/pod"
)

// stepMark is the result of a step.
type stepMark string

const (
	markDone      stepMark = "Done"
	markWaiting   stepMark = "Waiting"
	markFailed    stepMark = "Failed" // and is retried
	markNotNeeded stepMark = "NotNeeded"
)

// explainView is the output of `explain pod -o json`.
type explainView struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Steps in the order in which a pod takes them, as far as they are known.
	Steps []stepView `json:"steps"`
	// Summary is the verdict in a sentence. WaitsFor and LookAt are absent if the pod
	// waits for nothing.
	Summary  string `json:"summary"`
	WaitsFor string `json:"waitsFor,omitempty"`
	LookAt   string `json:"lookAt,omitempty"`
	// Former are the PodAttachments of earlier pods with the same name.
	Former []podView `json:"former"`
}

// stepView is one step.
type stepView struct {
	Step  string     `json:"step"`
	Mark  stepMark   `json:"mark"`
	Text  string     `json:"text"`
	Since *time.Time `json:"since,omitempty"`

	waitsFor, lookAt string // set if the step is waiting or failed
}

// buildExplain returns the steps of one pod; false if there is neither a pod nor a record
// of one.
func buildExplain(snap kube.Snapshot, namespace, name string) (explainView, bool) {
	s := story{v: explainView{Namespace: namespace, Name: name, Steps: []stepView{}, Former: []podView{}}}
	for i := range snap.Pods {
		if p := &snap.Pods[i]; p.Namespace == namespace && p.Name == name {
			s.pod, s.v.UID = p, p.UID
		}
	}
	var records []*v1alpha1.PodAttachment
	for i := range snap.Attachments {
		if a := &snap.Attachments[i]; a.Pod() == (types.NamespacedName{Namespace: namespace, Name: name}) {
			records = append(records, a)
		}
	}
	slices.SortFunc(records, func(a, b *v1alpha1.PodAttachment) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for _, a := range records {
		switch {
		case s.record == nil && (s.pod == nil || a.OwnUID() == s.v.UID):
			s.record, s.v.UID = a, a.OwnUID()
		default:
			s.v.Former = append(s.v.Former, recordedPod(a, nil))
		}
	}
	if s.pod == nil && s.record == nil {
		return explainView{}, false
	}
	s.summarize(snap)
	return s.v, true
}

// story collects the steps of one pod.
type story struct {
	v      explainView
	pod    *corev1.Pod             // nil if the pod is gone
	record *v1alpha1.PodAttachment // nil if there is none
}

func (s *story) add(mark stepMark, step string, since *time.Time, format string, args ...any) *stepView {
	s.v.Steps = append(s.v.Steps, stepView{Step: step, Mark: mark, Text: fmt.Sprintf(format, args...), Since: since})
	return &s.v.Steps[len(s.v.Steps)-1]
}

// pending sets what an unfinished step waits for, and where to look.
func (v *stepView) pending(waitsFor, lookAt string) { v.waitsFor, v.lookAt = waitsFor, lookAt }

func (s *story) summarize(snap kube.Snapshot) {
	s.v.Summary = "waits for nothing: " + s.addSteps(snap)
	for _, step := range s.v.Steps {
		if step.waitsFor != "" {
			s.v.WaitsFor, s.v.LookAt = step.waitsFor, step.lookAt
			s.v.Summary = fmt.Sprintf("waits for: %s; look at: %s", step.waitsFor, step.lookAt)
			return
		}
	}
}

// addSteps adds the steps in order until one decides. It returns the summary of a pod
// that waits for nothing.
func (s *story) addSteps(snap kube.Snapshot) string {
	if s.pod != nil && !s.scheduled() {
		return ""
	}
	if s.pod != nil && s.pod.Spec.HostNetwork {
		s.add(markNotNeeded, "network", nil, "the pod uses its host's network")
		return "it uses its host's network, with which Fairlead has nothing to do"
	}
	if s.pod != nil && pod.Finished(s.pod) && s.record == nil {
		s.add(markNotNeeded, "network", nil, "the pod has finished: phase %s", s.pod.Status.Phase)
		return "it has finished, and its addresses are given back"
	}
	if s.record == nil && s.notOurs(snap) {
		return "no network of it is Fairlead's"
	}
	if s.record == nil {
		if s.served(snap) {
			s.notRecorded(snap)
		}
		return "it is being deleted, and has nothing to give back"
	}
	if s.pod != nil {
		s.served(snap)
	}
	s.recorded()
	s.active()
	s.plugged()
	if !s.terminating() {
		return "it has its network"
	}
	s.releasing()
	return "its addresses are given back"
}

func (s *story) scheduled() bool {
	p := s.pod
	var since *time.Time
	message := "the scheduler has not chosen a node"
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			since = output.Timestamp(c.LastTransitionTime.Time)
			if c.Message != "" {
				message = c.Message
			}
		}
	}
	if p.Spec.NodeName != "" {
		s.add(markDone, "scheduled", since, "on node %s", p.Spec.NodeName)
		return true
	}
	s.add(markWaiting, "scheduled", since, "%s", message).
		pending("the scheduler to choose a node", s.describe())
	return false
}

func (s *story) describe() string {
	return fmt.Sprintf("kubectl -n %s describe pod %s", s.v.Namespace, s.v.Name)
}

// served reports whether Fairlead serves the pod's node, and adds the step.
func (s *story) served(snap kube.Snapshot) bool {
	node := s.pod.Spec.NodeName
	k := slices.IndexFunc(snap.Nodes, func(n v1alpha1.NodeNetwork) bool { return n.Name == node })
	if k < 0 {
		s.add(markFailed, "node", nil, "Fairlead does not serve node %s: it has no NodeNetwork", node).
			pending("Fairlead to serve node "+node, "nodeSelector in the controller's configuration, and fairlead status")
		return false
	}
	v := buildNode(&snap.Nodes[k])
	if !v.Ready {
		s.add(markFailed, "node", v.CreatedAt, "%s", explained(node, v.Reason, v.Message)).
			pending("the network of node "+node, fmt.Sprintf("fairlead status, and the log of fairlead-node on %s", node))
		return true
	}
	s.add(markDone, "node", v.CreatedAt, "%s is served, and its routes are in place", node)
	return true
}

// notOurs reports whether the pod has no network of Fairlead, and adds the step if so.
func (s *story) notOurs(snap kube.Snapshot) bool {
	k := slices.IndexFunc(snap.Nodes, func(n v1alpha1.NodeNetwork) bool { return n.Name == s.pod.Spec.NodeName })
	if k < 0 || s.pod.DeletionTimestamp != nil || !snap.NotOurs(s.pod, &snap.Nodes[k]) {
		return false
	}
	s.add(markNotNeeded, "network", nil, "the default network is another plugin's, and the pod asks for no further network of Fairlead's")
	return true
}

// notRecorded adds the reason why a pod on a served node has no record.
func (s *story) notRecorded(snap kube.Snapshot) {
	p := s.pod
	warning := latestWarnings(snap.Events)[p.UID]
	v := podWithoutRecord(p, warning)
	switch {
	case p.DeletionTimestamp != nil:
		s.add(markNotNeeded, "record", output.Timestamp(p.DeletionTimestamp.Time), "the pod is being deleted and gets no network any more")
	case warning != nil:
		s.add(markFailed, "record", output.Timestamp(kube.Seen(warning)), "%s: %s", v.Reason, output.OneLine(v.Message)).
			pending("the controller to find it a network ("+v.Reason+")", "fairlead pools, and "+s.describe())
	default:
		s.add(markWaiting, "record", v.Since, "the controller has written neither a PodAttachment nor a warning").
			pending("the controller to choose its addresses", "fairlead status, and the log of fairlead-controller")
	}
}

func (s *story) recorded() {
	a := s.record
	s.add(markDone, "record", output.Timestamp(a.CreationTimestamp.Time), "PodAttachment %s", a.Name)
	for _, i := range a.Spec.Interfaces {
		text := []string{fmt.Sprintf("%s on network %s: %s", i.Name, i.Network, cmp.Or(strings.Join(i.Addresses, ", "), "no address"))}
		for _, from := range []struct{ what, name string }{{"pool", i.Pool}, {"domain", i.Domain}, {"claim", i.Claim}} {
			if from.name != "" {
				text = append(text, from.what+" "+from.name)
			}
		}
		if id := portOf(i); id != "" {
			text = append(text, "port "+id)
		}
		s.add(markDone, "addresses", output.Timestamp(a.CreationTimestamp.Time), "%s", strings.Join(text, ", "))
	}
}

// portOf returns the ID of the port in OpenStack that an interface is; empty if it is none.
func portOf(i v1alpha1.Interface) string {
	if i.Driver != "neutron" {
		return ""
	}
	return i.Binding.Port()
}

func (s *story) active() {
	a := s.record
	var waiting, reasons []string
	lookAt := "the log of fairlead-controller"
	needed := false
	for _, i := range a.Spec.Interfaces {
		needed = needed || i.WaitForActive
		if i.WaitForActive && !slices.ContainsFunc(a.Status.Interfaces, func(x v1alpha1.InterfaceStatus) bool { return x.Name == i.Name && x.Active }) {
			waiting = append(waiting, i.Name)
			for _, x := range a.Status.Interfaces {
				if x.Name == i.Name && x.Message != "" {
					reasons = append(reasons, ": "+x.Message)
				}
			}
			if id := portOf(i); id != "" {
				lookAt = "openstack port show " + id + ", and the log of fairlead-controller"
			}
		}
	}
	switch {
	case !needed:
		s.add(markNotNeeded, "active", nil, "no driver has to say that traffic flows")
	case len(waiting) == 0:
		s.add(markDone, "active", nil, "the driver's network carries the traffic")
	case s.terminating():
		s.add(markNotNeeded, "active", nil, "%s never became active", strings.Join(waiting, ", "))
	default:
		s.add(markWaiting, "active", output.Timestamp(a.CreationTimestamp.Time), "the driver's network does not carry the traffic of %s yet%s", strings.Join(waiting, ", "), strings.Join(reasons, "")).
			pending("the driver's network to carry the traffic of "+strings.Join(waiting, ", "), lookAt)
	}
}

// plugged adds the state of the record on the node.
func (s *story) plugged() {
	a := s.record
	node := a.Spec.NodeName
	sandbox := a.Status.Sandbox
	ready := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady)
	attached := sandbox != nil && sandbox.State == v1alpha1.SandboxAttached && (sandbox.AttachedAt != nil || isTrue(ready))
	switch {
	case attached && !isFalse(ready):
		s.add(markDone, "plugged", attachedSince(sandbox), "in sandbox %s", sandbox.ID)
	case attached && lacksInterfaces(ready):
		s.missingInterfaces(sandbox, ready)
	case attached && ready.Reason == v1alpha1.ReasonInterfacesGone:
		s.goneInterfaces(sandbox, ready)
	case s.terminating() && !attached:
		s.add(markNotNeeded, "plugged", nil, "the pod needs no network any more")
	case isFalse(ready) && (sandbox == nil || attached):
		s.add(markFailed, "plugged", output.Timestamp(ready.LastTransitionTime.Time), "%s", explained("node "+node, ready.Reason, ready.Message)).
			pending(fmt.Sprintf("node %s to plug it (%s)", node, ready.Reason), fmt.Sprintf("%s, and the log of fairlead-node on %s", s.describe(), node))
	default:
		since := output.Timestamp(a.CreationTimestamp.Time)
		if isFalse(ready) { // between two sandboxes
			since = output.Timestamp(ready.LastTransitionTime.Time)
		}
		s.add(markWaiting, "plugged", since, "the container runtime on %s has not asked for the network of a sandbox", node).
			pending("the container runtime on "+node+" to make the pod's sandbox", fmt.Sprintf("%s, and the kubelet's log on %s", s.describe(), node))
	}
}

// missingInterfaces adds the interfaces that a sandbox lacks. The node does not make the
// interfaces of other plugins: it learns of such an interface when its addresses are
// requested.
func (s *story) missingInterfaces(sandbox *v1alpha1.Sandbox, ready *metav1.Condition) {
	if s.terminating() {
		s.add(markDone, "plugged", attachedSince(sandbox), "in sandbox %s, without all of its interfaces", sandbox.ID)
		return
	}
	node := s.record.Spec.NodeName
	s.add(markWaiting, "plugged", output.Timestamp(ready.LastTransitionTime.Time), "in sandbox %s, but not %s", sandbox.ID, output.OneLine(ready.Message)).
		pending("the container runtime on "+node+" to have every interface made ("+ready.Reason+")",
			fmt.Sprintf("%s, the CNI configurations on %s, and the log of Multus there", s.describe(), node))
}

// goneInterfaces adds the interfaces that a sandbox has lost.
func (s *story) goneInterfaces(sandbox *v1alpha1.Sandbox, ready *metav1.Condition) {
	if s.terminating() {
		s.add(markDone, "plugged", attachedSince(sandbox), "in sandbox %s, until its interfaces were gone", sandbox.ID)
		return
	}
	node := s.record.Spec.NodeName
	s.add(markFailed, "plugged", output.Timestamp(ready.LastTransitionTime.Time), "%s", explained("node "+node, ready.Reason, ready.Message)).
		pending("a deletion of the pod, after which its successor gets all interfaces", fmt.Sprintf("%s, and the log of fairlead-node on %s", s.describe(), node))
}

// terminating reports whether the record's interfaces are being released.
func (s *story) terminating() bool {
	return s.record.DeletionTimestamp != nil || s.pod == nil || pod.Finished(s.pod) || s.pod.DeletionTimestamp != nil
}

// releasing adds the steps that remain until the addresses are free.
func (s *story) releasing() {
	a := s.record
	node := a.Spec.NodeName
	if a.DeletionTimestamp == nil {
		if s.pod != nil && !pod.Finished(s.pod) {
			s.add(markWaiting, "release", output.Timestamp(s.pod.DeletionTimestamp.Time), "the pod is being deleted, and may use its network until it is gone").
				pending("the kubelet on "+node+" to end the pod", s.describe())
			return
		}
		s.add(markWaiting, "release", nil, "the pod is finished or gone, and the PodAttachment is not being deleted yet").
			pending("the controller to delete the PodAttachment", "fairlead status, and the log of fairlead-controller")
		return
	}
	asked := output.Timestamp(a.DeletionTimestamp.Time)
	s.add(markDone, "release", asked, "the PodAttachment is being deleted")
	released := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReleased)
	detached := a.Status.Sandbox != nil && a.Status.Sandbox.State == v1alpha1.SandboxDetached
	if releaseFails(released) {
		if detached {
			s.add(markDone, "node's word", nil, "nothing on node %s holds %s", node, a.Spec.Summary.Addresses)
		} else {
			s.add(markNotNeeded, "node's word", nil, "there is proof that node %s cannot hold %s", node, a.Spec.Summary.Addresses)
		}
		s.givenBack(markFailed, output.Timestamp(released.LastTransitionTime.Time), output.OneLine(released.Reason+": "+released.Message))
		return
	}
	if !detached {
		text := fmt.Sprintf("node %s has not said that nothing holds %s", node, a.Spec.Summary.Addresses)
		if isFalse(released) {
			text = released.Message // names the other conditions for release
		}
		s.add(markWaiting, "node's word", asked, "%s", text).
			pending(fmt.Sprintf("node %s to say that nothing holds %s, or proof that it cannot", node, a.Spec.Summary.Addresses),
				fmt.Sprintf("kubectl get node %s, and the log of fairlead-node on it", node))
		return
	}
	var said *time.Time
	if at := a.Status.Sandbox.DetachedAt; at != nil {
		said = output.Timestamp(at.Time)
	}
	s.add(markDone, "node's word", said, "nothing on node %s holds %s", node, a.Spec.Summary.Addresses)
	s.givenBack(markWaiting, asked, "the controller has not given them back: finalizer "+v1alpha1.ReleaseFinalizer)
}

func (s *story) givenBack(mark stepMark, since *time.Time, text string) {
	s.add(mark, "given back", since, "%s", text).
		pending("the controller to give "+s.record.Spec.Summary.Addresses+" back", "fairlead status, and the log of fairlead-controller")
}

// explainText returns a line per step, and the verdict.
func explainText(v explainView, now time.Time) string {
	rows := [][]string{{"STEP", "MARK", "SINCE", "WHAT"}}
	for _, step := range v.Steps {
		rows = append(rows, []string{step.Step, string(step.Mark), output.Age(step.Since, now), output.OneLine(step.Text)})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s/%s (uid %s)\n%s", v.Namespace, v.Name, v.UID, output.Table(rows))
	for _, f := range v.Former {
		fmt.Fprintf(&b, "\nformer pod of that name, PodAttachment %s: %s\n", f.Attachment, formerText(f, now))
	}
	fmt.Fprintf(&b, "\nThe pod %s.\n", v.Summary)
	return b.String()
}

func formerText(v podView, now time.Time) string {
	text := string(v.State)
	if v.Reason != "" {
		text += fmt.Sprintf(" (%s)", v.Reason)
	}
	return fmt.Sprintf("%s for %s, with %s on %s", text, output.Age(v.Since, now), v.addresses(), v.Node)
}
