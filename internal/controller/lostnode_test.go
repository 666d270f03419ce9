package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/gc"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// served creates another node that the controller serves.
func (h *harness) served(name string) string {
	h.t.Helper()
	h.Node(name, func(n *corev1.Node) { n.Labels["fairlead.dev/test"] = h.Namespace })
	return name
}

// changeNode changes a Node, spec and status, as it is now.
func (h *harness) changeNode(name string, change func(*corev1.Node)) {
	h.t.Helper()
	node := &corev1.Node{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		h.t.Fatal(err)
	}
	before := node.DeepCopy()
	change(node)
	status := node.DeepCopy()
	if err := h.Client.Patch(h.t.Context(), node, client.MergeFrom(before)); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Client.Status().Patch(h.t.Context(), status, client.MergeFrom(before)); err != nil {
		h.t.Fatal(err)
	}
}

// nodeUID is the UID of a Node.
func (h *harness) nodeUID(name string) types.UID {
	h.t.Helper()
	node := &corev1.Node{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		h.t.Fatal(err)
	}
	return node.UID
}

func (h *harness) deleteNode(name string) {
	h.t.Helper()
	if err := h.Client.Delete(h.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		h.t.Fatal(err)
	}
}

// away makes a node unreachable for so long, as Kubernetes reports it.
func away(since time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown",
			LastTransitionTime: metav1.NewTime(time.Now().Add(-since)),
		}}
	}
}

// booted makes a node report another boot by its kubelet.
func booted(n *corev1.Node) {
	n.Status.NodeInfo.BootID = "boot-2"
	n.Status.Conditions = []corev1.NodeCondition{{
		// Whole seconds: the next second is after any moment until now.
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now().Add(time.Second)),
	}}
}

// pools creates IPPools for the duration of the test and names them, by pod and
// interface, as the driver would. Names of cluster-wide objects begin with the namespace.
func (h *harness) pools(of func(o driver.Owner) string, specs map[string]v1alpha1.IPPoolSpec) {
	h.t.Helper()
	for name, spec := range specs {
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace + "-" + name}, Spec: spec}
		if err := h.Client.Create(h.t.Context(), pool); err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() { _ = h.Client.Delete(context.Background(), pool) })
	}
	h.driver.PoolBy(func(o driver.Owner) string {
		if name := of(o); name != "" {
			return h.Namespace + "-" + name
		}
		return ""
	})
}

func holding() v1alpha1.IPPoolSpec {
	return v1alpha1.IPPoolSpec{Ranges: []string{"192.0.2.0/24"}}
}

func reclaiming(after time.Duration) v1alpha1.IPPoolSpec {
	return v1alpha1.IPPoolSpec{
		Ranges: []string{"192.0.2.0/24"}, UnreachablePolicy: v1alpha1.UnreachableReclaimAfter, ReclaimAfter: &metav1.Duration{Duration: after},
	}
}

// policy changes a pool's policy for unreachable nodes.
func (h *harness) policy(pool string, to v1alpha1.IPPoolSpec) {
	h.t.Helper()
	o := &v1alpha1.IPPool{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Name: h.Namespace + "-" + pool}, o); err != nil {
		h.t.Fatal(err)
	}
	o.Spec.UnreachablePolicy, o.Spec.ReclaimAfter = to.UnreachablePolicy, to.ReclaimAfter
	if err := h.Client.Update(h.t.Context(), o); err != nil {
		h.t.Fatal(err)
	}
}

// waitsFor waits until the condition of a pod's record shows that it waits for its node.
func (h *harness) waitsFor(p *corev1.Pod, text string) {
	h.t.Helper()
	h.Eventually(h.t, fmt.Sprintf("the record of pod %s to wait because %q", p.Name, text), func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		c := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonWaitingForNode || !strings.Contains(c.Message, text) ||
			!strings.Contains(c.Message, record.Spec.Summary.Addresses) || !strings.Contains(c.Message, record.Spec.NodeName) {
			return fmt.Errorf("conditions %+v", record.Status.Conditions)
		}
		return nil
	})
}

// proven returns the counter of a proof.
func (h *harness) proven(by proof.Proof) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "fairlead_release_proofs_total" && m.GetLabel()[0].GetValue() == string(by) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// Every proof releases a record, and nothing other than a proof does, while the node's
// daemon is not running. Each pod has a node of its own, and all wait at the same time.
//
// whereabouts#550 (replacements starve after a node's shutdown), #75 and k8s#65943 (a
// node that crashed), #485 (unreachable pods' addresses were freed silently), plugins#252
// and calico#4190 (leftovers of a reboot), whereabouts#162 and calico PR#13538 (absence
// and stale signs taken for death).
func TestReleaseWithoutTheNode(t *testing.T) {
	fence := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	}
	cases := []struct {
		name  string
		pool  string
		fresh bool // never plugged
		// node changes the node; nil deletes it
		node func(*corev1.Node)
		want proof.Proof
		text string // of the event, or of the condition
	}{
		{name: "rebooted", node: booted, want: proof.ByReboot, text: "boot-2"},
		{name: "out-of-service", node: func(n *corev1.Node) { away(time.Second)(n); fence(n) }, want: proof.ByFence, text: "out-of-service"},
		{name: "deleted", want: proof.ByDeletion, text: "found deleted"},
		{name: "deleted-fresh", fresh: true, want: proof.ByDeletion, text: "found deleted"},
		{name: "reclaimed", pool: "short", node: away(2 * time.Minute), want: proof.ByPolicy, text: "in use twice"},

		{name: "rebooted-fresh", fresh: true, node: booted},
		{name: "not-ready", node: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, text: "not ready since"},
		{name: "unreachable", node: away(time.Hour), text: "unreachable since"},
		{name: "unreachable-hold", pool: "hold", node: away(time.Hour), text: "unreachable since"},
		{name: "unreachable-unknown-pool", pool: "none", node: away(time.Hour), text: "unreachable since"},
		{name: "unreachable-two-pools", pool: "mixed", node: away(time.Hour), text: "unreachable since"},
		{name: "reclaimed-later", pool: "long", node: away(2 * time.Minute), text: "given back after 1h0m0s"},
		{name: "fence-forgotten", node: fence, text: ""},
	}
	d := drivertest.NewMemory(driverName, 2*len(cases)+2)
	h := start(t, cluster.Exclusive(t), d, withSource(func(p *corev1.Pod) ([]pod.Interface, error) {
		if p.Name != "unreachable-two-pools" {
			return nil, nil
		}
		return withSecond(p)
	}))
	poolOf := map[string]string{}
	for _, tc := range cases {
		poolOf[tc.name] = tc.pool
	}
	h.pools(func(o driver.Owner) string {
		if poolOf[o.PodName] == "mixed" {
			return map[string]string{"eth0": "short", "net1": "hold"}[o.Interface]
		}
		return poolOf[o.PodName]
	}, map[string]v1alpha1.IPPoolSpec{"short": reclaiming(time.Minute), "long": reclaiming(time.Hour), "hold": holding()})

	pods := make([]*corev1.Pod, len(cases))
	for i, tc := range cases {
		pods[i] = h.Pod(tc.name, h.served(h.Namespace+"-"+tc.name))
		h.record(pods[i])
		if !tc.fresh {
			h.setSandbox(pods[i], v1alpha1.SandboxAttached)
		}
	}
	// The deletion comes before the change of the node and after it, in turns: either
	// event may bring the record back to the controller.
	for i, tc := range cases {
		if i%2 == 0 {
			h.delete(pods[i])
			h.waitState(pods[i], "deleting")
		}
		if tc.want == proof.ByReboot {
			h.changeNode(pods[i].Spec.NodeName, away(time.Second))
			h.waitsFor(pods[i], "unreachable since") // the next report of its kubelet is a new one
		}
		if tc.node == nil {
			h.deleteNode(pods[i].Spec.NodeName)
		} else {
			h.changeNode(pods[i].Spec.NodeName, tc.node)
		}
		if i%2 == 1 {
			h.delete(pods[i])
		}
	}
	// The time in the Node's condition does not count: the controller has seen the outage
	// for some seconds only.
	i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Name == "reclaimed" })
	h.waitsFor(pods[i], "given back after 1m0s")
	h.skip(2 * time.Minute)
	h.policy("short", reclaiming(time.Minute+time.Second))
	for i, tc := range cases {
		if tc.want == proof.None {
			continue
		}
		h.waitState(pods[i], "absent")
		if h.heldBy(pods[i]) != 0 {
			t.Errorf("%s: not taken back", tc.name)
		}
		if note := h.event(pods[i], eventCollected); !strings.Contains(note, tc.text) || !strings.Contains(note, "192.0.2.") {
			t.Errorf("%s: the event says %q", tc.name, note)
		}
	}
	// By now, twelve seconds later, each of the others had its chance.
	for i, tc := range cases {
		if tc.want != proof.None {
			continue
		}
		if h.state(t.Context(), pods[i]) != "deleting" || h.heldBy(pods[i]) == 0 {
			t.Errorf("%s: the record is %s, %d held", tc.name, h.state(t.Context(), pods[i]), h.heldBy(pods[i]))
		}
		if tc.text != "" {
			h.waitsFor(pods[i], tc.text)
		}
	}
	for by, want := range map[proof.Proof]float64{proof.ByWord: 0, proof.ByReboot: 1, proof.ByFence: 1, proof.ByDeletion: 2, proof.ByPolicy: 1} {
		if got := h.proven(by); got != want {
			t.Errorf("metric of %s: %v, want %v", by, got, want)
		}
	}
	h.eventType("reclaimed", corev1.EventTypeWarning)
	h.eventType("deleted", corev1.EventTypeNormal)
}

// eventType checks the type of the event about a pod's release.
func (h *harness) eventType(pod, want string) {
	h.t.Helper()
	var list eventsv1.EventList
	if err := h.Client.List(h.t.Context(), &list, client.InNamespace(h.Namespace)); err != nil {
		h.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == pod && e.Reason == eventCollected && e.Type != want {
			h.t.Errorf("the event about pod %s is of type %s, want %s: %s", pod, e.Type, want, e.Note)
		}
	}
}

// A record that waits for an unreachable node, without a time to try again, is tried
// again when the node changes.
func TestNewsOfANodeEndTheWait(t *testing.T) {
	h := start(t, cluster.Exclusive(t), drivertest.NewMemory(driverName, 8))
	news := map[string]func(node string){
		"fenced": func(node string) {
			h.changeNode(node, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoSchedule}}
			})
		},
		"booted":  func(node string) { h.changeNode(node, booted) },
		"deleted": h.deleteNode,
	}
	var pods []*corev1.Pod
	for name := range news {
		p := h.Pod(name, h.served(h.Namespace+"-"+name))
		h.record(p)
		h.setSandbox(p, v1alpha1.SandboxAttached)
		h.changeNode(p.Spec.NodeName, away(time.Hour))
		h.delete(p)
		pods = append(pods, p)
	}
	for _, p := range pods {
		h.waitsFor(p, "unreachable since")
		news[p.Name](p.Spec.NodeName)
	}
	for _, p := range pods {
		h.waitState(p, "absent")
	}
}

// A Node that was created again is another machine, unless it runs the same boot. That
// machine may have plugged the pod, until its kubelet reports.
func TestNodeMadeAgain(t *testing.T) {
	h := start(t, cluster.Exclusive(t), drivertest.NewMemory(driverName, 8))
	other, same := h.Pod("other", h.served(h.Namespace+"-other")), h.Pod("same", h.served(h.Namespace+"-same"))
	for _, p := range []*corev1.Pod{other, same} {
		h.record(p)
		h.setSandbox(p, v1alpha1.SandboxAttached)
	}
	for _, p := range []*corev1.Pod{other, same} {
		boot := map[string]string{"other": "boot-2", "same": "boot-1"}[p.Name]
		h.deleteNode(p.Spec.NodeName)
		h.Node(p.Spec.NodeName, func(n *corev1.Node) {
			n.Labels["fairlead.dev/test"] = h.Namespace
			n.Status.NodeInfo.BootID = boot
			away(time.Minute)(n)
		})
		h.delete(p)
	}
	h.waitsFor(other, "unreachable since")
	h.changeNode(other.Spec.NodeName, booted)
	h.waitState(other, "absent")
	if note := h.event(other, eventCollected); !strings.Contains(note, "made again") {
		t.Errorf("the event says %q", note)
	}
	if h.state(t.Context(), same) != "deleting" || h.heldBy(same) != 1 {
		t.Errorf("the record on the machine that is the same is %s, %d held", h.state(t.Context(), same), h.heldBy(same))
	}
}

// whereabouts#485, the other half: pods on a node that is cut off terminate for ever, and
// hold addresses that their replacements need. A pool's owner may reclaim them, also by
// changing the policy while the pods hang.
func TestReclaimFromPodsThatTerminate(t *testing.T) {
	h := start(t, cluster.Exclusive(t), drivertest.NewMemory(driverName, 8))
	h.pools(func(o driver.Owner) string { return "pool" }, map[string]v1alpha1.IPPoolSpec{"pool": holding()})
	node := h.served(h.Namespace + "-away")
	leaving, staying := h.Pod("leaving", node), h.Pod("staying", node)
	reachable := h.Pod("reachable", h.node)
	for _, p := range []*corev1.Pod{leaving, staying, reachable} {
		h.record(p)
		h.setSandbox(p, v1alpha1.SandboxAttached)
	}
	h.changeNode(node, away(time.Hour))
	for _, p := range []*corev1.Pod{leaving, reachable} {
		if err := h.Client.Delete(t.Context(), p, client.GracePeriodSeconds(60)); err != nil {
			t.Fatal(err)
		}
	}
	h.settle("other")
	if h.state(t.Context(), leaving) != "kept" {
		t.Fatalf("with the policy Hold the record is %s", h.state(t.Context(), leaving))
	}
	h.policy("pool", reclaiming(time.Minute))
	h.settle("too-early")
	if h.state(t.Context(), leaving) != "kept" {
		t.Fatalf("seconds after the node fell silent, for an hour by its Node, the record is %s", h.state(t.Context(), leaving))
	}
	h.skip(2 * time.Minute)
	h.policy("pool", reclaiming(time.Minute+time.Second))
	h.waitState(leaving, "absent")
	h.settle("another")
	for _, p := range []*corev1.Pod{staying, reachable} {
		if h.state(t.Context(), p) != "kept" || h.heldBy(p) != 1 {
			t.Errorf("the record of the pod that is %s is %s, %d held", p.Name, h.state(t.Context(), p), h.heldBy(p))
		}
	}
	if h.heldBy(leaving) != 0 || h.state(t.Context(), leaving) != "absent" {
		t.Error("not taken back, or given again")
	}
}

// calico#5044: an object that cannot be read is no proof, and neither is an object in a
// cache.
func TestNoProofWithoutTheAPIServer(t *testing.T) {
	h := start(t, cluster.Exclusive(t), drivertest.NewMemory(driverName, 8))
	p := h.Pod("web", h.served(h.Namespace+"-gone"))
	h.record(p)
	h.setSandbox(p, v1alpha1.SandboxAttached)
	h.faults.Set(func(verb, resource, _, _ string) cluster.Fault {
		if verb == "get" && resource == "nodes" {
			return cluster.Fault{Kind: cluster.Refuse}
		}
		return cluster.Fault{}
	})
	h.delete(p)
	h.deleteNode(p.Spec.NodeName)
	h.Eventually(t, "a fifth try", func(context.Context) error {
		if n := h.faults.Count("get", "nodes"); n < 5 {
			return fmt.Errorf("%d tries", n)
		}
		return nil
	})
	if h.state(t.Context(), p) != "deleting" || h.heldBy(p) != 1 {
		t.Fatalf("without an answer the record is %s, %d held", h.state(t.Context(), p), h.heldBy(p))
	}
	h.faults.Set(nil)
	h.waitState(p, "absent")
}

// A record that garbage collection writes for an interface on a lost node is released
// like any other record.
func TestCollectedFromALostNode(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	h := start(t, cluster.Exclusive(t), d)
	lost := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: "lost", UID: "11111111-0000-4000-8000-000000000000"}}
	lost.Spec.NodeName = h.Namespace + "-no-such-node"
	if _, err := d.Ensure(t.Context(), &driver.Request{Owner: ownerOf(lost, "eth0"), Network: v1alpha1.DefaultNetwork, Default: true}); err != nil {
		t.Fatal(err)
	}
	collector := gc.New(gc.Config{
		Client: h.Client, Live: h.Client, Drivers: driver.Table{driverName: d.Parts()},
		Namespace: h.Namespace, Synced: func() bool { return true },
	})
	if n, err := collector.Pass(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d collected, error %v", n, err)
	}
	h.waitState(lost, "absent")
	if note := h.event(lost, eventCollected); !strings.Contains(note, "found deleted") {
		t.Errorf("the event says %q", note)
	}
	if h.heldBy(lost) != 0 {
		t.Error("not taken back")
	}
	if n, err := collector.Pass(t.Context()); n != 0 || err != nil {
		t.Errorf("afterwards %d collected, error %v", n, err)
	}
}

// kuryr and whereabouts 1.6: one address that could not be freed kept the others of the
// pod from being freed, or the pod was forgotten after three tries.
func TestOneInterfaceThatFailsKeepsNoOther(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	h := start(t, cluster.New(t), d, withSource(withSecond))
	p := h.Pod("web", h.node)
	h.record(p)
	d.FailWith(func(method string, o driver.Owner) error {
		if method == "release" && o.Interface == "net1" { // the first in the order of release
			return errors.New("the backend is on fire")
		}
		return nil
	})
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.Eventually(t, "the other interface to go back", func(context.Context) error {
		if n := h.heldBy(p); n != 1 {
			return fmt.Errorf("%d held", n)
		}
		return nil
	})
	if note := h.event(p, eventFailed); !strings.Contains(note, "net1") || !strings.Contains(note, "192.0.2.2") {
		t.Errorf("the event says %q", note)
	}
	h.Eventually(t, "a fifth try", func(context.Context) error {
		if n := d.Calls("release"); n < 10 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	d.FailWith(nil)
	h.waitState(p, "absent")
	if h.heldBy(p) != 0 {
		t.Error("not taken back")
	}
}
