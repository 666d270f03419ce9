package cli

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/test/clitest"
)

// without returns a snapshot of one pod. If change is not nil, it also has a record with
// that change.
func without(p corev1.Pod, change ...func(*v1alpha1.PodAttachment)) kube.Snapshot {
	snap := clitest.Quiet()
	snap.Pods, snap.Attachments = []corev1.Pod{p}, nil
	if len(change) > 0 {
		r := clitest.RecordOf(p, "10.244.248.65/32", change...)
		r.Spec.Interfaces[0].Pool, r.Spec.Interfaces[0].Domain = "default", "default"
		snap.Attachments = append(snap.Attachments, r)
	}
	return snap
}

// gone returns a snapshot without its pods.
func gone(snap kube.Snapshot) kube.Snapshot {
	snap.Pods = nil
	return snap
}

func asWritten(*v1alpha1.PodAttachment) {}

func scheduledNow(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: clitest.Ago(9 * time.Minute)}}
}

func waitsForNode(a *v1alpha1.PodAttachment) {
	a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForNode, LastTransitionTime: clitest.Ago(6 * time.Minute),
		Message: "node node-1 has not said that nothing holds 10.244.248.65: it has been unreachable since 2026-03-02T09:20:00Z",
	})
}

// stories returns a snapshot for every state that explain distinguishes, by name of the
// golden file.
func stories() map[string]kube.Snapshot {
	at := func(change ...func(*corev1.Pod)) corev1.Pod {
		return clitest.PodOf("cart-0", "node-1", append([]func(*corev1.Pod){scheduledNow}, change...)...)
	}
	deleting := func(p *corev1.Pod) { p.DeletionTimestamp = new(clitest.Ago(20 * time.Second)) }
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	waits := func(a *v1alpha1.PodAttachment) { a.Spec.Interfaces[0].WaitForActive = true }
	port := func(a *v1alpha1.PodAttachment) {
		i := &a.Spec.Interfaces[0]
		i.Driver, i.Pool, i.Domain, i.WaitForActive = "neutron", "", "", true
		i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br-int", PortID: "5d8a1f6e-0000-4000-8000-000000000001"}}
		a.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: i.Name, Message: "driver neutron: port 5d8a1f6e-0000-4000-8000-000000000001 is DOWN for more than 1m0s: see that the node plugged it"}}
	}
	unplugged := func(a *v1alpha1.PodAttachment) {
		a.Status.Sandbox.State = v1alpha1.SandboxDetached
		a.Status.Sandbox.DetachedAt = new(metav1.NewMicroTime(clitest.Now.Add(-5 * time.Second)))
		clitest.SetReady(metav1.ConditionFalse, "Unplugged", "unplugged")(a)
	}
	lacks := clitest.SetReady(metav1.ConditionFalse, v1alpha1.ReasonInterfacesMissing, "net1 (network shop/storage): no plugin has asked for the addresses")
	cut := clitest.SetReady(metav1.ConditionFalse, v1alpha1.ReasonInterfacesGone, "eth0: removed from the node by another program: delete the pod, its successor gets all interfaces")
	refused := without(at())
	refused.Events = append(refused.Events, clitest.WarningAbout(at(), "NetworkExhausted", "no network yet: pool default: usable=4 free=0 allocated=4 cooling=0 held=0 reserved=0", 20*time.Second))
	overQuota := without(at())
	overQuota.Events = append(overQuota.Events, clitest.WarningAbout(at(), "NetworkExhausted", "no network yet: driver neutron: exhausted: the quota of OpenStack project k8s is used up: create port: over quota: Quota exceeded for resources: ['port'] (HTTP 409 OverQuota, request req-7c1d)", 20*time.Second))
	unrouted := without(at(), clitest.NotPlugged)
	unrouted.Nodes = []v1alpha1.NodeNetwork{clitest.NodeOf("node-1", clitest.NotRouted)}
	otherPlugin := without(at())
	clitest.OtherDefaults(&otherPlugin)
	successor := without(at())
	former := clitest.RecordOf(clitest.PodOf("cart-0", "node-2", func(p *corev1.Pod) { p.UID = "1111aaaa-cart-0" }), "10.244.21.130/32", clitest.Deleted(7*time.Minute))
	successor.Attachments = append(successor.Attachments, former)
	return map[string]kube.Snapshot{
		"unscheduled": without(clitest.PodOf("cart-0", "", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu.", LastTransitionTime: clitest.Ago(time.Minute)}}
		})),
		"hostnetwork":  without(at(func(p *corev1.Pod) { p.Spec.HostNetwork = true })),
		"notserved":    without(clitest.PodOf("cart-0", "node-9")),
		"norecord":     without(at()),
		"otherplugin":  otherPlugin,
		"refused":      refused,
		"overquota":    overQuota,
		"portdown":     without(at(), clitest.NotPlugged, port),
		"deletednone":  without(at(deleting)),
		"unrouted":     unrouted,
		"waiting":      without(at(), clitest.NotPlugged),
		"notactive":    without(at(), clitest.NotPlugged, waits),
		"failing":      without(at(), clitest.NotPlugged, clitest.SetReady(metav1.ConditionFalse, "MTU", "eth0: the uplink's MTU is 1400 and the network's 1500")),
		"plugged":      without(at(), asWritten),
		"lacking":      without(at(), asWritten, lacks),
		"lackingends":  without(at(deleting), asWritten, lacks),
		"cut":          without(at(), asWritten, cut),
		"cutends":      without(at(deleting), asWritten, cut),
		"resandboxed":  without(at(), unplugged),
		"terminating":  without(at(deleting), asWritten),
		"finished":     without(at(finished)),
		"finishedheld": without(at(finished), asWritten),
		"gonenotasked": gone(without(at(), asWritten)),
		"releasing":    gone(without(at(), clitest.Deleted(7*time.Minute))),
		"detached":     gone(without(at(), unplugged, clitest.Deleted(7*time.Second))),
		"stuck":        gone(without(at(), unplugged, clitest.ReleaseUnavailable)),
		"lostnode":     gone(without(at(), clitest.Deleted(7*time.Minute), waitsForNode)),
		"provenstuck":  gone(without(at(), clitest.ReleaseUnavailable)),
		"successor":    successor,
	}
}
