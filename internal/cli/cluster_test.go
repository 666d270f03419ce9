package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/clitest"
	"fairlead.dev/fairlead/test/cluster"
)

// askJSON calls the program against a cluster and decodes its output.
func askJSON[T any](t *testing.T, c *cluster.Cluster, code int, args ...string) T {
	t.Helper()
	got := call(t, append(args, "--kubeconfig", c.Kubeconfig, "-o", "json")...)
	if got.Code != code || got.Stderr != "" {
		t.Fatalf("%v: got %+v, want code %d", args, got, code)
	}
	var view T
	if err := json.Unmarshal([]byte(got.Stdout), &view); err != nil {
		t.Fatalf("%v: %v in %s", args, err, got.Stdout)
	}
	return view
}

func create(t *testing.T, c *cluster.Cluster, o client.Object) {
	t.Helper()
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// setStatus applies change to an object and writes its status.
func setStatus[T client.Object](t *testing.T, c *cluster.Cluster, o T, change func(T)) {
	t.Helper()
	change(o)
	if err := c.Client.Status().Update(t.Context(), o); err != nil {
		t.Fatalf("writing the status of %T %s: %v", o, o.GetName(), err)
	}
}

// warn writes an event about a pod, as the controller does.
func warn(t *testing.T, c *cluster.Cluster, about *corev1.Pod, controller, reason string) {
	t.Helper()
	create(t, c, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: about.Namespace, GenerateName: about.Name + "-"},
		EventTime:           metav1.NowMicro(),
		ReportingController: controller,
		ReportingInstance:   controller + "-1",
		Action:              "EnsureNetwork",
		Type:                corev1.EventTypeWarning,
		Reason:              reason,
		Note:                "no network yet",
		Regarding:           corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: about.Namespace, Name: about.Name, UID: about.UID},
	})
}

// installIn creates the objects that run the programs, without pods.
func installIn(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	of := func(name, program string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: map[string]string{kube.LabelProgram: program}}
	}
	template := func(program, image string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		labels := map[string]string{kube.LabelProgram: program}
		return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"no": "node"},
				Containers:   []corev1.Container{{Name: "program", Image: image}},
			},
		}
	}
	deployment := &appsv1.Deployment{ObjectMeta: of("controller", kube.ControllerName), Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
	deployment.Spec.Selector, deployment.Spec.Template = template(kube.ControllerName, "registry.example:5000/fairlead:v1.2.3")
	create(t, c, deployment)
	daemons := &appsv1.DaemonSet{ObjectMeta: of("daemons", kube.DaemonName)}
	daemons.Spec.Selector, daemons.Spec.Template = template(kube.DaemonName, "fairlead:v1.2.4")
	create(t, c, daemons)
}

// TestAgainstACluster acts as controller and node on a real API server, and reads the
// result through the program. It needs the whole cluster, because status shows it all.
func TestAgainstACluster(t *testing.T) {
	c := cluster.Exclusive(t)
	node := c.Node("served")
	network := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: v1alpha1.NodeNetworkSpec{Blocks: []string{"10.0.0.0/26"}}}
	create(t, c, network)
	setStatus(t, c, network, func(n *v1alpha1.NodeNetwork) {
		n.Status = v1alpha1.NodeNetworkStatus{
			Uplink: "eth0", Addresses: []string{"192.0.2.1/24"}, MTU: 1500,
			Conditions: []metav1.Condition{clitest.Condition(v1alpha1.ConditionRouted, metav1.ConditionTrue, "Routed")},
		}
	})
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}}}
	create(t, c, pool)
	setStatus(t, c, pool, func(p *v1alpha1.IPPool) {
		p.Status = v1alpha1.IPPoolStatus{
			Usable: 254, Free: 253, Allocated: 1,
			Conditions: []metav1.Condition{clitest.Condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonValid)},
		}
	})
	// The Lease is not in the namespace of the flag, and is found nevertheless.
	create(t, c, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: kube.ControllerName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("me_1"), LeaseDurationSeconds: new(int32(3600)),
			AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NowMicro()),
		},
	})
	plugged := c.Pod("plugged", node.Name)
	record := pod.Record(pod.IdentityOf(plugged), []v1alpha1.Interface{{
		Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{"10.0.0.5/32"},
		Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
	}})
	create(t, c, record)
	setStatus(t, c, record, func(a *v1alpha1.PodAttachment) {
		a.Status.Sandbox = &v1alpha1.Sandbox{ID: "5f2c", State: v1alpha1.SandboxAttached, AttachedAt: new(metav1.NowMicro())}
	})
	c.Pod("host", node.Name, func(p *corev1.Pod) { p.Spec.HostNetwork = true })

	status := askJSON[statusView](t, c, exitOK, "status", "--system-namespace", "nowhere")
	if diff := cmp.Diff(statusView{
		OK: true, Attention: []string{},
		Controller: controllerView{State: controllerLeading, Lease: c.Namespace + "/" + kube.ControllerName, Leader: "me_1"},
		Programs:   []programView{},
		Nodes: nodesView{Ready: 1, Items: []nodeView{{
			Name: node.Name, Ready: true, Uplink: "eth0", Addresses: []string{"192.0.2.1/24"}, Blocks: []string{"10.0.0.0/26"}, MTU: 1500,
		}}},
		Pools: []poolView{{
			Name: "default", Domain: "default", Placement: v1alpha1.PlacementShared, Usable: 254, Free: 253, Allocated: 1, Ready: metav1.ConditionTrue,
		}},
		Clouds: []cloudView{},
		Pods:   podCounts{Attached: 1},
	}, status, cmpopts.IgnoreTypes(&time.Time{})); diff != "" {
		t.Error(diff)
	}
	if status.Controller.RenewedAt == nil || status.Nodes.Items[0].CreatedAt == nil {
		t.Errorf("times are missing in %+v", status)
	}

	// The cluster also runs the programs, but no daemon on the node.
	installIn(t, c)
	status = askJSON[statusView](t, c, exitOK, "status", "--system-namespace", "nowhere")
	if diff := cmp.Diff([]programView{
		{Name: "controller", Kind: "Deployment", Version: "v1.2.3"}, {Name: "daemons", Kind: "DaemonSet", Version: "v1.2.4"},
	}, status.Programs); diff != "" {
		t.Error(diff)
	}
	if n := status.Nodes.Items[0]; n.Ready || n.Reason != reasonNoDaemon {
		t.Errorf("node %+v, want it not ready with %s", n, reasonNoDaemon)
	}

	// A pod is refused, and the pool is invalid.
	refused := c.Pod("refused", node.Name)
	warn(t, c, refused, "somebody-else", "Unrelated")
	warn(t, c, refused, kube.ControllerName, "NetworkExhausted")
	setStatus(t, c, pool, func(p *v1alpha1.IPPool) {
		p.Status.Conditions = []metav1.Condition{clitest.Condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalid)}
	})

	status = askJSON[statusView](t, c, exitAttention, "status", "--system-namespace", "nowhere")
	if diff := cmp.Diff([]string{
		"pool default: Invalid: Invalid it is",
		"1 pod without a PodAttachment (" + c.Namespace + "/refused: NetworkExhausted: no network yet)",
	}, status.Attention); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, p := range askJSON[podList](t, c, exitOK, "pods", "-n", c.Namespace).Pods {
		got = append(got, strings.Join([]string{p.Name, p.Node, p.interfaces(), p.addresses(), string(p.State), p.Reason}, " "))
	}
	if diff := cmp.Diff([]string{"plugged served eth0 10.0.0.5 Attached ", "refused served   None NetworkExhausted"}, got); diff != "" {
		t.Error(diff)
	}
	if all := askJSON[podList](t, c, exitOK, "pods", "-A").Pods; !slices.ContainsFunc(all, func(p podView) bool { return p.Name == "refused" }) {
		t.Errorf("pods -A does not show refused: %+v", all)
	}
	if none := askJSON[podList](t, c, exitOK, "pods", "-n", "kube-system").Pods; len(none) != 0 {
		t.Errorf("pods of kube-system: %+v", none)
	}
	if diff := cmp.Diff(status.Pools, askJSON[poolList](t, c, exitOK, "pools").Pools); diff != "" {
		t.Errorf("pools and status differ: %s", diff)
	}
}
