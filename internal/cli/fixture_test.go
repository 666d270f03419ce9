package cli

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

// now is the present time of every test.
var now = time.Date(2026, 3, 2, 9, 30, 0, 0, time.UTC)

// ago returns the time d before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func leaseOf(holder string, renewed time.Duration) *coordinationv1.Lease {
	acquired, last := metav1.NewMicroTime(now.Add(-26*time.Hour)), metav1.NewMicroTime(now.Add(-renewed))
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

func nodeOf(name string, with ...func(*v1alpha1.NodeNetwork)) v1alpha1.NodeNetwork {
	n := v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(26 * time.Hour)},
		Status: v1alpha1.NodeNetworkStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed", Message: "all is in place"},
		}},
	}
	for _, change := range with {
		change(&n)
	}
	return n
}

func poolOf(name string, with ...func(*v1alpha1.IPPool)) v1alpha1.IPPool {
	p := v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(26 * time.Hour), Generation: 1},
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

// podOf returns a pod that was scheduled ten minutes ago. Its UID is its name and a few
// digits.
func podOf(name, node string, with ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("8f14e45f-" + name), CreationTimestamp: ago(10 * time.Minute)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, change := range with {
		change(&p)
	}
	return p
}

// recordOf returns the record of a pod, plugged by its node nine minutes ago.
func recordOf(p corev1.Pod, address string, with ...func(*v1alpha1.PodAttachment)) v1alpha1.PodAttachment {
	a := pod.Record(pod.IdentityOf(&p), []v1alpha1.Interface{
		{Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{address}},
	})
	a.CreationTimestamp = ago(10 * time.Minute)
	at := metav1.NewMicroTime(now.Add(-9 * time.Minute))
	a.Status.Sandbox = &v1alpha1.Sandbox{ID: "5f2c", BootID: "b", State: v1alpha1.SandboxAttached, AttachedAt: &at}
	setReady(metav1.ConditionTrue, "Plugged", "plugged in sandbox 5f2c")(a)
	for _, change := range with {
		change(a)
	}
	return *a
}

func setReady(status metav1.ConditionStatus, reason, message string) func(*v1alpha1.PodAttachment) {
	return func(a *v1alpha1.PodAttachment) {
		a.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(9 * time.Minute),
		}}
	}
}

func notPlugged(a *v1alpha1.PodAttachment) { a.Status = v1alpha1.PodAttachmentStatus{} }

func deleted(d time.Duration) func(*v1alpha1.PodAttachment) {
	return func(a *v1alpha1.PodAttachment) { a.DeletionTimestamp = new(ago(d)) }
}

func releaseUnavailable(a *v1alpha1.PodAttachment) {
	a.DeletionTimestamp = new(ago(5 * time.Minute))
	a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: "Unavailable",
		Message: "interface eth0: write IPBlock: the server is busy", LastTransitionTime: ago(4 * time.Minute),
	})
}

func warningAbout(p corev1.Pod, reason, note string, since time.Duration) eventsv1.Event {
	return eventsv1.Event{
		EventTime: metav1.NewMicroTime(now.Add(-since)),
		Reason:    reason,
		Note:      note,
		Type:      corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
}

// quiet returns a cluster in which all is well.
func quiet() kube.Snapshot {
	a, b := podOf("cart-0", "node-1"), podOf("cart-1", "node-2")
	return kube.Snapshot{
		Now:       now,
		Lease:     leaseOf("fairlead-controller-6d5f-x2x4k_1", 400*time.Millisecond),
		Installed: installedOn("node-1", "node-2"),
		Nodes: []v1alpha1.NodeNetwork{
			nodeOf("node-2", linked("192.168.77.12/24", "10.244.21.128/26")),
			nodeOf("node-1", linked("192.168.77.11/24", "10.244.248.64/26")),
		},
		Pools:       []v1alpha1.IPPool{poolOf("default", perNode, counts(65536, 2))},
		Pods:        []corev1.Pod{a, b},
		Attachments: []v1alpha1.PodAttachment{recordOf(a, "10.244.248.65/32"), recordOf(b, "10.244.21.130/32")},
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
		Pods: []corev1.Pod{programPod(kube.ControllerName, "node-1"), programPod(kube.ControllerName, "node-2")},
	}
	for _, node := range nodes {
		in.Pods = append(in.Pods, programPod(kube.DaemonName, node))
	}
	return in
}

// programPod returns a ready pod of a program.
func programPod(program, node string) corev1.Pod {
	p := podOf(program+"-on-"+node, node)
	p.Namespace, p.Labels = "fairlead-system", map[string]string{kube.LabelProgram: program}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(26 * time.Hour)}}
	return p
}

// crashing marks a pod of a program as not ready for a time.
func crashing(in *kube.Installation, program, node string, since time.Duration) {
	for i := range in.Pods {
		p := &in.Pods[i]
		if p.Labels[kube.LabelProgram] == program && p.Spec.NodeName == node {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, ago(since)
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

func notRouted(n *v1alpha1.NodeNetwork) {
	n.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionRouted, Status: metav1.ConditionFalse, Reason: "NotReachable",
		Message: "node node-3 is not on a shared link, and takes nothing encapsulated",
	}}
}

// others returns a quiet cluster whose default network is another plugin's.
func others() kube.Snapshot {
	snap := quiet()
	otherDefaults(&snap)
	snap.Pods = append(snap.Pods, podOf("plain-0", "node-1"), podOf("plain-1", "node-2"))
	return snap
}

// otherDefaults makes the default network another plugin's.
func otherDefaults(s *kube.Snapshot) {
	for i := range s.Nodes {
		s.Nodes[i].Spec.DefaultNetwork = v1alpha1.DefaultNetworkOther
	}
	s.Foreign = map[types.NamespacedName]bool{{Namespace: "shop", Name: "storage"}: true}
}

func onNetworks(names string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: names} }
}

func silent(n *v1alpha1.NodeNetwork) { n.Status = v1alpha1.NodeNetworkStatus{} }

func perNode(p *v1alpha1.IPPool) { p.Spec.Placement = v1alpha1.PlacementPerNode }

func counts(usable, allocated int64) func(*v1alpha1.IPPool) {
	return func(p *v1alpha1.IPPool) {
		p.Status.Usable, p.Status.Allocated, p.Status.Free = usable, allocated, usable-allocated
	}
}

func exhausted(p *v1alpha1.IPPool) { p.Status.Conditions[1].Status = metav1.ConditionTrue }

func invalid(p *v1alpha1.IPPool) {
	p.Status = v1alpha1.IPPoolStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalid, ObservedGeneration: 1,
		Message: `spec.ranges[0]: "10.9.0.1/16" has host bits set: write 10.9.0.0/16 for the whole network, or 10.9.0.1-10.9.0.1/16 for this address on it`,
	}}}
}

// troubled returns a cluster with every kind of problem.
func troubled() kube.Snapshot {
	snap := quiet()
	waiting, releasing, failing, none := podOf("cart-2", "node-1"), podOf("cart-3", "node-2"), podOf("pay-0", "node-1"), podOf("pay-1", "node-2")
	snap.Nodes[1] = nodeOf("node-1", linked("192.168.77.11/24", "10.244.248.64/26"), notRouted)
	snap.Nodes = append(snap.Nodes, nodeOf("node-4", linked("192.168.77.14/24", "10.244.9.0/26")))
	snap.Installed = installedOn("node-1", "node-2", "node-4")
	crashing(&snap.Installed, kube.DaemonName, "node-4", 14*time.Hour)
	snap.Pools = []v1alpha1.IPPool{poolOf("default", perNode, counts(4, 4), exhausted), poolOf("backup", invalid)}
	snap.Pods = append(snap.Pods, waiting, none, podOf("batch", "node-9"))
	snap.Attachments = append(snap.Attachments,
		recordOf(waiting, "10.244.248.66/32", notPlugged),
		recordOf(releasing, "10.244.21.131/32", deleted(7*time.Minute)),
		recordOf(failing, "10.244.248.67/32", releaseUnavailable),
	)
	snap.Events = []eventsv1.Event{
		warningAbout(none, "NetworkExhausted", "no network yet: interface eth0 on network default: pool default: 4 usable, 4 allocated", 20*time.Second),
	}
	return snap
}
