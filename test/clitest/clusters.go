// Package clitest has the clusters that the tests of commands show.
package clitest

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/pod"
)

// Now is the present time of every test.
var Now = time.Date(2026, 3, 2, 9, 30, 0, 0, time.UTC)

// Ago returns the time d before Now.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

// LeaseOf returns the controller's Lease with a holder that renewed it some time ago.
func LeaseOf(holder string, renewed time.Duration) *coordinationv1.Lease {
	acquired, last := metav1.NewMicroTime(Now.Add(-26*time.Hour)), metav1.NewMicroTime(Now.Add(-renewed))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: kube.ControllerName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			LeaseDurationSeconds: new(int32(3)),
			AcquireTime:          &acquired,
			RenewTime:            &last,
		},
	}
}

// NodeOf returns a node that is in place. with changes it.
func NodeOf(name string, with ...func(*v1alpha1.NodeNetwork)) v1alpha1.NodeNetwork {
	n := v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: Ago(26 * time.Hour)},
		Status: v1alpha1.NodeNetworkStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed", Message: "all is in place"},
		}},
	}
	for _, change := range with {
		change(&n)
	}
	return n
}

// PoolOf returns a valid pool of domain default. with changes it.
func PoolOf(name string, with ...func(*v1alpha1.IPPool)) v1alpha1.IPPool {
	p := v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: Ago(26 * time.Hour), Generation: 1},
		Spec:       v1alpha1.IPPoolSpec{Domain: "default", Placement: v1alpha1.PlacementShared},
		Status: v1alpha1.IPPoolStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonValid, ObservedGeneration: 1},
			{Type: v1alpha1.ConditionExhausted, Status: metav1.ConditionFalse, Reason: "AddressesLeft", ObservedGeneration: 1},
		}},
	}
	for _, change := range with {
		change(&p)
	}
	return p
}

// PodOf returns a pod that was scheduled ten minutes ago. Its UID is its name and a few
// digits.
func PodOf(name, node string, with ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("8f14e45f-" + name), CreationTimestamp: Ago(10 * time.Minute)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, change := range with {
		change(&p)
	}
	return p
}

// RecordOf returns the record of a pod, plugged by its node nine minutes ago.
func RecordOf(p corev1.Pod, address string, with ...func(*v1alpha1.PodAttachment)) v1alpha1.PodAttachment {
	a := pod.Record(pod.IdentityOf(&p), []v1alpha1.Interface{
		{Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{address}},
	})
	a.CreationTimestamp = Ago(10 * time.Minute)
	at := metav1.NewMicroTime(Now.Add(-9 * time.Minute))
	a.Status.Sandbox = &v1alpha1.Sandbox{ID: "5f2c", BootID: "b", State: v1alpha1.SandboxAttached, AttachedAt: &at}
	SetReady(metav1.ConditionTrue, "Plugged", "plugged in sandbox 5f2c")(a)
	for _, change := range with {
		change(a)
	}
	return *a
}

// SetReady sets the condition Ready of a record, nine minutes ago.
func SetReady(status metav1.ConditionStatus, reason, message string) func(*v1alpha1.PodAttachment) {
	return func(a *v1alpha1.PodAttachment) {
		a.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message, LastTransitionTime: Ago(9 * time.Minute),
		}}
	}
}

// NotPlugged makes a record that no node has plugged.
func NotPlugged(a *v1alpha1.PodAttachment) { a.Status = v1alpha1.PodAttachmentStatus{} }

// Deleted marks a record as deleted some time ago.
func Deleted(d time.Duration) func(*v1alpha1.PodAttachment) {
	return func(a *v1alpha1.PodAttachment) { a.DeletionTimestamp = new(Ago(d)) }
}

// ReleaseUnavailable marks a record as deleted, with a release that fails.
func ReleaseUnavailable(a *v1alpha1.PodAttachment) {
	a.DeletionTimestamp = new(Ago(5 * time.Minute))
	a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: "Unavailable",
		Message: "interface eth0: write IPBlock: the server is busy", LastTransitionTime: Ago(4 * time.Minute),
	})
}

// WarningAbout returns an event about a pod.
func WarningAbout(p corev1.Pod, reason, note string, since time.Duration) eventsv1.Event {
	return eventsv1.Event{
		EventTime: metav1.NewMicroTime(Now.Add(-since)),
		Reason:    reason,
		Note:      note,
		Type:      corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
}

// Quiet returns a cluster in which all is well.
func Quiet() kube.Snapshot {
	a, b := PodOf("cart-0", "node-1"), PodOf("cart-1", "node-2")
	return kube.Snapshot{
		Now:       Now,
		Lease:     LeaseOf("fairlead-controller-6d5f-x2x4k_1", 400*time.Millisecond),
		Installed: installedOn("node-1", "node-2"),
		Nodes: []v1alpha1.NodeNetwork{
			NodeOf("node-2", linked("192.168.77.12/24", "10.244.21.128/26")),
			NodeOf("node-1", linked("192.168.77.11/24", "10.244.248.64/26")),
		},
		Pools:       []v1alpha1.IPPool{PoolOf("default", PerNode, Counts(65536, 2))},
		Pods:        []corev1.Pod{a, b},
		Attachments: []v1alpha1.PodAttachment{RecordOf(a, "10.244.248.65/32"), RecordOf(b, "10.244.21.130/32")},
	}
}

// installedOn returns the usual installation, with a daemon on each of the nodes.
func installedOn(nodes ...string) kube.Installation {
	template := func(image string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}}
	}
	in := kube.Installation{
		Controllers: []appsv1.Deployment{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: kube.ControllerName},
			Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Template: template("registry.example:5000/fairlead:v0.3.1@sha256:3b9f")},
			Status:     appsv1.DeploymentStatus{ReadyReplicas: 2},
		}},
		Daemons: []appsv1.DaemonSet{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: kube.DaemonName},
			Spec:       appsv1.DaemonSetSpec{Template: template("registry.example:5000/fairlead:v0.3.1")},
			Status:     appsv1.DaemonSetStatus{NumberReady: int32(len(nodes)), DesiredNumberScheduled: int32(len(nodes))},
		}},
		Pods: []corev1.Pod{ProgramPod(kube.ControllerName, "node-1"), ProgramPod(kube.ControllerName, "node-2")},
	}
	for _, node := range nodes {
		in.Pods = append(in.Pods, ProgramPod(kube.DaemonName, node))
	}
	return in
}

// ProgramPod returns a ready pod of a program.
func ProgramPod(program, node string) corev1.Pod {
	p := PodOf(program+"-on-"+node, node)
	p.Namespace, p.Labels = "fairlead-system", map[string]string{kube.LabelProgram: program}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: Ago(26 * time.Hour)}}
	return p
}

// Crashing marks a pod of a program as not ready for a time.
func Crashing(in *kube.Installation, program, node string, since time.Duration) {
	for i := range in.Pods {
		p := &in.Pods[i]
		if p.Labels[kube.LabelProgram] == program && p.Spec.NodeName == node {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, Ago(since)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		}
	}
	if program == kube.ControllerName {
		in.Controllers[0].Status.ReadyReplicas--
	} else {
		in.Daemons[0].Status.NumberReady--
	}
}

func linked(address string, blocks ...string) func(*v1alpha1.NodeNetwork) {
	return func(n *v1alpha1.NodeNetwork) {
		n.Spec.Blocks = blocks
		n.Status.Uplink, n.Status.MTU, n.Status.Addresses = "eth0", 1500, []string{address}
	}
}

// NotRouted makes a node that does not reach another.
func NotRouted(n *v1alpha1.NodeNetwork) {
	n.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionRouted, Status: metav1.ConditionFalse, Reason: "NotReachable",
		Message: "node node-3 is not on a shared link, and takes nothing encapsulated",
	}}
}

// Others returns a quiet cluster whose default network is another plugin's.
func Others() kube.Snapshot {
	snap := Quiet()
	OtherDefaults(&snap)
	snap.Pods = append(snap.Pods, PodOf("plain-0", "node-1"), PodOf("plain-1", "node-2"))
	return snap
}

// OtherDefaults makes the default network another plugin's.
func OtherDefaults(s *kube.Snapshot) {
	for i := range s.Nodes {
		s.Nodes[i].Spec.DefaultNetwork = v1alpha1.DefaultNetworkOther
	}
	s.Foreign = map[types.NamespacedName]bool{{Namespace: "shop", Name: "storage"}: true}
}

// OnNetworks has a pod request further networks.
func OnNetworks(names string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: names} }
}

// Silent makes a node that has not reported.
func Silent(n *v1alpha1.NodeNetwork) { n.Status = v1alpha1.NodeNetworkStatus{} }

// PerNode makes a pool with placement PerNode.
func PerNode(p *v1alpha1.IPPool) { p.Spec.Placement = v1alpha1.PlacementPerNode }

// Counts sets the usable and allocated addresses of a pool; the others are free.
func Counts(usable, allocated int64) func(*v1alpha1.IPPool) {
	return func(p *v1alpha1.IPPool) {
		p.Status.Usable, p.Status.Allocated, p.Status.Free = usable, allocated, usable-allocated
	}
}

// Exhausted makes a pool without free addresses.
func Exhausted(p *v1alpha1.IPPool) { p.Status.Conditions[1].Status = metav1.ConditionTrue }

// Invalid makes a pool with an invalid spec.
func Invalid(p *v1alpha1.IPPool) {
	p.Status = v1alpha1.IPPoolStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalid, ObservedGeneration: 1,
		Message: `spec.ranges[0]: "10.9.0.1/16" has host bits set: write 10.9.0.0/16 for the whole network, or 10.9.0.1-10.9.0.1/16 for this address on it`,
	}}}
}

// Troubled returns a cluster with every kind of problem.
func Troubled() kube.Snapshot {
	snap := Quiet()
	waiting, releasing, failing, none := PodOf("cart-2", "node-1"), PodOf("cart-3", "node-2"), PodOf("pay-0", "node-1"), PodOf("pay-1", "node-2")
	snap.Nodes[1] = NodeOf("node-1", linked("192.168.77.11/24", "10.244.248.64/26"), NotRouted)
	snap.Nodes = append(snap.Nodes, NodeOf("node-4", linked("192.168.77.14/24", "10.244.9.0/26")))
	snap.Installed = installedOn("node-1", "node-2", "node-4")
	Crashing(&snap.Installed, kube.DaemonName, "node-4", 14*time.Hour)
	snap.Pools = []v1alpha1.IPPool{PoolOf("default", PerNode, Counts(4, 4), Exhausted), PoolOf("backup", Invalid)}
	snap.Pods = append(snap.Pods, waiting, none, PodOf("batch", "node-9"))
	snap.Attachments = append(snap.Attachments,
		RecordOf(waiting, "10.244.248.66/32", NotPlugged),
		RecordOf(releasing, "10.244.21.131/32", Deleted(7*time.Minute)),
		RecordOf(failing, "10.244.248.67/32", ReleaseUnavailable),
	)
	snap.Events = []eventsv1.Event{
		WarningAbout(none, "NetworkExhausted", "no network yet: interface eth0 on network default: pool default: 4 usable, 4 allocated", 20*time.Second),
	}
	return snap
}

// Condition returns a condition of the first generation.
func Condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: reason + " it is", ObservedGeneration: 1, LastTransitionTime: metav1.Now()}
}
