package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/clitest"
)

func TestStateOfARecord(t *testing.T) {
	type state struct {
		State  podState
		Reason string
		Since  time.Duration // ago
	}
	sandboxIs := func(change func(*v1alpha1.Sandbox)) func(*v1alpha1.PodAttachment) {
		return func(a *v1alpha1.PodAttachment) { change(a.Status.Sandbox) }
	}
	detached := sandboxIs(func(s *v1alpha1.Sandbox) { s.State = v1alpha1.SandboxDetached })
	waits := func(a *v1alpha1.PodAttachment) { a.Spec.Interfaces[0].WaitForActive = true }
	active := func(a *v1alpha1.PodAttachment) {
		a.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: "eth0", Active: true}}
	}
	for _, tt := range []struct {
		name string
		with []func(*v1alpha1.PodAttachment)
		want state
	}{
		{"plugged", nil, state{stateAttached, "", 9 * time.Minute}},
		{"just written", []func(*v1alpha1.PodAttachment){clitest.NotPlugged}, state{stateWaiting, "NotPlugged", 10 * time.Minute}},
		{"not active", []func(*v1alpha1.PodAttachment){clitest.NotPlugged, waits}, state{stateWaiting, "NotActive", 10 * time.Minute}},
		{"active, not plugged", []func(*v1alpha1.PodAttachment){clitest.NotPlugged, waits, active}, state{stateWaiting, "NotPlugged", 10 * time.Minute}},
		{
			"sandbox restarts",
			[]func(*v1alpha1.PodAttachment){detached, clitest.SetReady(metav1.ConditionFalse, "Unplugged", "")},
			state{stateWaiting, "NotPlugged", 9 * time.Minute},
		},
		{
			"being plugged again",
			[]func(*v1alpha1.PodAttachment){sandboxIs(func(s *v1alpha1.Sandbox) { s.AttachedAt = nil }), clitest.SetReady(metav1.ConditionFalse, "Plugging", "")},
			state{stateWaiting, "NotPlugged", 9 * time.Minute},
		},
		{"plugged and not ready", []func(*v1alpha1.PodAttachment){clitest.SetReady(metav1.ConditionFalse, "LinkDown", "eth0")}, state{stateFailing, "LinkDown", 9 * time.Minute}},
		{
			"lacks an interface",
			[]func(*v1alpha1.PodAttachment){clitest.SetReady(metav1.ConditionFalse, v1alpha1.ReasonInterfacesMissing, "net1")},
			state{stateWaiting, "InterfacesMissing", 9 * time.Minute},
		},
		{
			"has lost an interface",
			[]func(*v1alpha1.PodAttachment){clitest.SetReady(metav1.ConditionFalse, v1alpha1.ReasonInterfacesGone, "eth0")},
			state{stateFailing, "InterfacesGone", 9 * time.Minute},
		},
		{"cannot be plugged", []func(*v1alpha1.PodAttachment){clitest.NotPlugged, clitest.SetReady(metav1.ConditionFalse, "MTU", "")}, state{stateFailing, "MTU", 9 * time.Minute}},
		{"deleted, in use", []func(*v1alpha1.PodAttachment){clitest.Deleted(2 * time.Second)}, state{stateReleasing, "NodeNotDone", 2 * time.Second}},
		{"deleted, never plugged", []func(*v1alpha1.PodAttachment){clitest.NotPlugged, clitest.Deleted(2 * time.Second)}, state{stateReleasing, "NodeNotDone", 2 * time.Second}},
		{
			"deleted, unplugged",
			[]func(*v1alpha1.PodAttachment){detached, clitest.SetReady(metav1.ConditionFalse, "Unplugged", ""), clitest.Deleted(2 * time.Second)},
			state{stateReleasing, "ControllerNotDone", 2 * time.Second},
		},
		{"deleted, node lost", []func(*v1alpha1.PodAttachment){clitest.Deleted(2 * time.Second), waitsForNode}, state{stateReleasing, "WaitingForNode", 6 * time.Minute}},
		{"release fails", []func(*v1alpha1.PodAttachment){detached, clitest.ReleaseUnavailable}, state{stateFailing, "Unavailable", 4 * time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := clitest.RecordOf(clitest.PodOf("cart-0", "node-1"), "10.0.0.1/32", tt.with...)
			v := recordedPod(&a, nil)
			if v.Since == nil {
				t.Fatal("since is not known")
			}
			if diff := cmp.Diff(tt.want, state{v.State, v.Reason, clitest.Now.Sub(*v.Since)}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodsWithoutRecord(t *testing.T) {
	nodes := []v1alpha1.NodeNetwork{clitest.NodeOf("node-1")}
	scheduled := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: clitest.Ago(time.Second)}}
	}
	plain := clitest.PodOf("a", "node-1")
	mirror := clitest.PodOf("a", "node-1", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"} })
	static := clitest.PodOf("a", "node-1", func(p *corev1.Pod) { p.UID = "static" })
	older := clitest.WarningAbout(plain, "NetworkInvalid", "older", time.Hour)
	newer := clitest.WarningAbout(plain, "NetworkExhausted", "newer", 2*time.Hour)
	newer.Series = &eventsv1.EventSeries{Count: 9, LastObservedTime: metav1.NewMicroTime(clitest.Now.Add(-time.Second))}
	for _, tt := range []struct {
		name        string
		pod         corev1.Pod
		attachments []v1alpha1.PodAttachment
		events      []eventsv1.Event
		want        []string // name, state, reason and age of the state of each
		elsewhere   int
	}{
		{name: "no record", pod: plain, want: []string{"a None NoRecord 10m"}},
		{name: "age of being scheduled", pod: clitest.PodOf("a", "node-1", scheduled), want: []string{"a None NoRecord 1s"}},
		{name: "event says why", pod: plain, events: []eventsv1.Event{older}, want: []string{"a None NetworkInvalid 10m"}},
		{name: "last event says why", pod: plain, events: []eventsv1.Event{newer, older}, want: []string{"a None NetworkExhausted 10m"}},
		{name: "event of a namesake", pod: static, events: []eventsv1.Event{older}, want: []string{"a None NoRecord 10m"}},
		{name: "record", pod: plain, attachments: []v1alpha1.PodAttachment{clitest.RecordOf(plain, "10.0.0.1/32")}, want: []string{"a Attached  9m"}},
		{name: "record of a namesake", pod: plain, attachments: []v1alpha1.PodAttachment{clitest.RecordOf(static, "10.0.0.1/32")}, want: []string{"a None NoRecord 10m", "a Attached  9m"}},
		{name: "static pod", pod: mirror, attachments: []v1alpha1.PodAttachment{clitest.RecordOf(mirror, "10.0.0.1/32")}, want: []string{"a Attached  9m"}},
		{name: "static pod of before", pod: mirror, attachments: []v1alpha1.PodAttachment{clitest.RecordOf(static, "10.0.0.1/32", func(r *v1alpha1.PodAttachment) {
			r.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(&mirror)}
		})}, want: []string{"a Attached  9m"}},
		{name: "record of a pod whose UID it names", pod: mirror, attachments: []v1alpha1.PodAttachment{clitest.RecordOf(static, "10.0.0.1/32")}, want: []string{"a None NoRecord 10m", "a Attached  9m"}},
		{name: "on the host's network", pod: clitest.PodOf("a", "node-1", func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		{name: "finished", pod: clitest.PodOf("a", "node-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
		{name: "not scheduled", pod: clitest.PodOf("a", "")},
		{name: "being deleted", pod: clitest.PodOf("a", "node-1", func(p *corev1.Pod) { p.DeletionTimestamp = new(clitest.Ago(time.Second)) })},
		{name: "node that is not served", pod: clitest.PodOf("a", "node-9"), elsewhere: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			snap := kube.Snapshot{Now: clitest.Now, Nodes: nodes, Pods: []corev1.Pod{tt.pod}, Attachments: tt.attachments, Events: tt.events}
			var got []string
			for _, p := range buildPods(snap) {
				got = append(got, p.Name+" "+string(p.State)+" "+p.Reason+" "+output.Age(p.Since, clitest.Now))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if elsewhere := kube.WithoutRecord(snap).Elsewhere; len(elsewhere) != tt.elsewhere {
				t.Errorf("%d pods on nodes that are not served, want %d", len(elsewhere), tt.elsewhere)
			}
		})
	}
}

// The node has lost the record of a sandbox and then the PodAttachment, which the controller has
// written again: nobody knows since when the pod is attached.
func TestPodWithoutAttachedAt(t *testing.T) {
	a := &v1alpha1.PodAttachment{Spec: v1alpha1.PodAttachmentSpec{PodName: "web", NodeName: "node-1"}}
	a.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	a.Status.Sandbox = &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached}
	a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Plugged"}}
	if v := recordedPod(a, nil); v.State != stateAttached || v.Since != nil {
		t.Errorf("state %s, %s, since %v", v.State, v.Reason, v.Since)
	}
	s := &story{record: a}
	s.plugged()
	if got := s.v.Steps[0]; got.Mark != markDone {
		t.Errorf("explain says %+v", got)
	}
}
