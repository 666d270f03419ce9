package controller

import (
	"cmp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/cluster"
)

// now is the moment of all judgements below. The record was written an hour
// before and plugged at once, in boot-1; it is being deleted for a minute.
var now = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func plugged(with ...func(*v1alpha1.PodAttachment)) *v1alpha1.PodAttachment {
	deletion, at := ago(time.Minute), metav1.NewMicroTime(now.Add(-time.Hour))
	record := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Hour), DeletionTimestamp: &deletion},
		Spec:       v1alpha1.PodAttachmentSpec{NodeName: "n1"},
		Status:     v1alpha1.PodAttachmentStatus{Sandbox: &v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: v1alpha1.SandboxAttached, AttachedAt: &at}},
	}
	for _, change := range with {
		change(record)
	}
	return record
}

// nodeOf is a node that is well, in boot-1, and older than the record.
func nodeOf(with ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: ago(24 * time.Hour)},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: ago(time.Second), LastTransitionTime: ago(10 * time.Minute),
			}},
		},
	}
	for _, change := range with {
		change(node)
	}
	return node
}

func inState(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].Status = status }
}

func inBoot(id string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }
}

func made(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.CreationTimestamp = ago(before) }
}

func reported(before time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = ago(before) }
}

func uid(of types.UID) func(*corev1.Node) {
	return func(n *corev1.Node) { n.UID = of }
}

// madeForIt is a record that says it was made for the Node with the UID 1.
func madeForIt(r *v1alpha1.PodAttachment) { r.Spec.NodeUID = "1" }

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: "shutdown", Effect: effect})
	}
}

func neverPlugged(r *v1alpha1.PodAttachment) { r.Status.Sandbox = nil }

func deletedFor(d time.Duration) func(*v1alpha1.PodAttachment) {
	return func(r *v1alpha1.PodAttachment) { deletion := ago(d); r.DeletionTimestamp = &deletion }
}

// What frees an address, and what does not: whereabouts#162 and #207 (absence
// was taken for death), #75 and #485 (a node that crashed), calico#5044 and
// PR#13538 (indirect signs); host-local's leaks after each boot, plugins#252
// and cni#204; calico#4190 and #13858 (state of an earlier boot).
func TestWeigh(t *testing.T) {
	const grace = 5 * time.Minute
	unreachable := inState(corev1.ConditionUnknown)
	fence := tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)
	cases := []struct {
		name   string
		record *v1alpha1.PodAttachment
		node   *corev1.Node
		// reclaim is the policy of the record's pools.
		reclaim time.Duration
		// lost is for how long the Node has been known to be no more.
		lost time.Duration
		// unheard says that the kubelet has not reported since the deletion, heard for how
		// long it is known to have; a minute where neither is set.
		unheard bool
		heard   time.Duration
		want    proof
		again   time.Duration
		text    string
	}{
		{
			name: "the node's word", want: detached,
			record: plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.State = v1alpha1.SandboxDetached }),
		},
		{name: "a node that is well", record: plugged(), node: nodeOf(), text: "is ready"},
		{name: "not ready", record: plugged(), node: nodeOf(inState(corev1.ConditionFalse)), text: "not ready since 2026-01-02T14:50:00Z"},
		{name: "unreachable", record: plugged(), node: nodeOf(unreachable), text: "unreachable since 2026-01-02T14:50:00Z"},
		{name: "no condition Ready", record: plugged(), node: nodeOf(func(n *corev1.Node) { n.Status.Conditions = nil }), reclaim: time.Minute, text: "not reported"},
		{name: "deleted ages ago on a node that is away", record: plugged(deletedFor(30 * 24 * time.Hour)), node: nodeOf(unreachable), text: "unreachable"},

		{name: "another boot", record: plugged(), node: nodeOf(inBoot("boot-2")), want: rebooted, text: "was boot-1 and is boot-2"},
		{name: "another boot, never plugged", record: plugged(neverPlugged), node: nodeOf(inBoot("boot-2")), text: "is ready"},
		{name: "a boot that is not known", record: plugged(), node: nodeOf(inBoot("")), text: "is ready"},
		{
			name: "a sandbox of no known boot", node: nodeOf(inBoot("boot-2")), text: "is ready",
			record: plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.BootID = "" }),
		},
		{
			name: "a sandbox of no known time", node: nodeOf(inBoot("boot-2")), text: "is ready",
			record: plugged(func(r *v1alpha1.PodAttachment) { r.Status.Sandbox.AttachedAt = nil }),
		},
		{
			name: "plugged after the boot, before the kubelet reported it", record: plugged(), node: nodeOf(inBoot("boot-0")), unheard: true,
			again: bootRetry, text: "has not reported since",
		},
		{
			name: "another boot, which the kubelet has just reported", record: plugged(), node: nodeOf(inBoot("boot-2")), heard: time.Second,
			again: rebootSettle - time.Second, text: "booted since",
		},
		{
			name: "another boot, and the deletion is not known there yet", record: plugged(deletedFor(4 * time.Second)), node: nodeOf(inBoot("boot-2")),
			again: rebootSettle - 4*time.Second, text: "booted since",
		},

		{name: "out of service", record: plugged(), node: nodeOf(unreachable, fence), want: outOfService, text: "out-of-service"},
		{name: "out of service, not ready", record: plugged(), node: nodeOf(inState(corev1.ConditionFalse), fence), want: outOfService},
		{name: "out of service, never plugged", record: plugged(neverPlugged), node: nodeOf(unreachable, fence), want: outOfService},
		{
			name: "out of service, not scheduled to", node: nodeOf(unreachable, tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoSchedule)),
			record: plugged(), want: outOfService,
		},
		{
			name: "out of service is only preferred", node: nodeOf(unreachable, tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectPreferNoSchedule)),
			record: plugged(), text: "unreachable",
		},
		{name: "a taint that was forgotten on a node that is back", record: plugged(), node: nodeOf(fence), text: "but is ready"},
		{name: "other taints", node: nodeOf(unreachable, tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)), record: plugged(), text: "unreachable"},

		{name: "no Node, seen first now", record: plugged(), again: grace, text: "found deleted at 2026-01-02T15:00:00Z"},
		{name: "no Node within the grace", record: plugged(), lost: time.Minute, again: 4 * time.Minute, text: "found deleted at 2026-01-02T14:59:00Z"},
		{name: "no Node past the grace", record: plugged(), lost: grace, want: nodeDeleted, text: "found deleted at 2026-01-02T14:55:00Z"},
		{name: "no Node, never plugged", record: plugged(neverPlugged), lost: grace, want: nodeDeleted},
		{
			name: "made again within the grace", record: plugged(), node: nodeOf(made(4*time.Minute), inBoot("boot-2")), lost: time.Minute,
			again: 4 * time.Minute, text: "made again",
		},
		{
			name: "made again past the grace", record: plugged(), node: nodeOf(made(6*time.Minute), inBoot("boot-2")), lost: 6 * time.Minute,
			want: nodeDeleted, text: "made again",
		},
		{
			name: "made again, and cut off before it could say what it has plugged", record: plugged(neverPlugged), lost: 6 * time.Minute,
			node: nodeOf(made(30*time.Minute), inBoot("boot-2"), unreachable), unheard: true, again: bootRetry, text: "unreachable",
		},
		{
			name: "made again, cut off, and out of service", record: plugged(neverPlugged), lost: 6 * time.Minute,
			node: nodeOf(made(30*time.Minute), unreachable, fence), unheard: true, want: outOfService,
		},
		{name: "made again, the same machine in the same boot", record: plugged(), node: nodeOf(made(time.Minute)), lost: time.Hour, text: "is ready"},
		{name: "made in the second of the record, or soon after", record: plugged(neverPlugged), node: nodeOf(made(time.Hour - clockSlack)), lost: time.Hour, text: "is ready"},

		{name: "the Node that it was made for, younger by a clock that jumped back", record: plugged(neverPlugged, madeForIt), node: nodeOf(uid("1"), made(time.Minute)), lost: time.Hour, text: "is ready"},
		{name: "another Node, older by a clock that jumped back", record: plugged(neverPlugged, madeForIt), node: nodeOf(uid("2")), lost: time.Hour, want: nodeDeleted, text: "made again"},
		{name: "another Node within the grace", record: plugged(madeForIt), node: nodeOf(uid("2"), inBoot("boot-2")), lost: time.Minute, again: 4 * time.Minute, text: "made again"},
		{name: "another Node, not heard of yet", record: plugged(neverPlugged, madeForIt), node: nodeOf(uid("2")), lost: time.Hour, unheard: true, again: bootRetry, text: "is ready"},
		{name: "another Node of the same machine in the same boot", record: plugged(madeForIt), node: nodeOf(uid("2"), made(time.Minute)), lost: time.Hour, text: "is ready"},

		{name: "to be reclaimed later", record: plugged(), node: nodeOf(unreachable), reclaim: 15 * time.Minute, again: 5 * time.Minute, text: "may then be in use twice"},
		{name: "reclaimed", record: plugged(), node: nodeOf(unreachable), reclaim: 10 * time.Minute, want: reclaimed, text: "an address is now in use twice"},
		{name: "never reclaimed of a node that says it is not ready", record: plugged(), node: nodeOf(inState(corev1.ConditionFalse)), reclaim: time.Minute, text: "not ready"},
		{name: "never reclaimed of a node that is well", record: plugged(), node: nodeOf(), reclaim: time.Minute, text: "is ready"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			e := evidence{node: tc.node, reclaimAfter: tc.reclaim, grace: grace, now: now}
			e.leavingSince, e.unreachableSince = tc.record.DeletionTimestamp.Time, now.Add(-10*time.Minute)
			if tc.reclaim > 0 && tc.node != nil && len(tc.node.Status.Conditions) > 0 {
				tc.node.Status.Conditions[0].LastTransitionTime = ago(-1000 * time.Hour) // of a clock that is ahead
			}
			if !tc.unheard {
				e.heard = now.Add(-cmp.Or(tc.heard, time.Minute))
			}
			if tc.lost > 0 {
				e.lostSince = now.Add(-tc.lost)
			}
			v := weigh(tc.record, e)
			if v.proof != tc.want || v.again != tc.again || !strings.Contains(v.text, tc.text) {
				t.Errorf("got %+v, want proof %q, again after %v, text with %q", v, tc.want, tc.again, tc.text)
			}
		})
	}
}

// A heartbeat is no event: only what may be evidence wakes records up.
func TestNodeEvents(t *testing.T) {
	cases := []struct {
		name  string
		after *corev1.Node
		want  bool
	}{
		{"a heartbeat", nodeOf(reported(0)), false},
		{"a label", nodeOf(func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }), false},
		{"another taint", nodeOf(tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), false},
		{"a boot", nodeOf(inBoot("boot-2")), true},
		{"a fence", nodeOf(tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)), true},
		{"unreachable", nodeOf(inState(corev1.ConditionUnknown)), true},
		{"made again", nodeOf(func(n *corev1.Node) { n.UID = "2" }), true},
	}
	for _, tc := range cases {
		if got := nodeEvidence().Update(event.UpdateEvent{ObjectOld: nodeOf(), ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// The word of a node is final, but the cache may be behind: a pod whose record was
// deleted may have a later one by now, which another leader wrote. Asked is the API
// server only when something was given to the pod since (make sim SEED=5006).
func TestWordOfAnEarlierRecord(t *testing.T) {
	c := cluster.New(t)
	live := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "web-1", Finalizers: []string{v1alpha1.ReleaseFinalizer}}}
	live.Spec = v1alpha1.PodAttachmentSpec{PodName: "web", PodUID: "9b2e6f4e-1a2b-4c3d-8e9f-000000000001", NodeName: "n1", Interfaces: []v1alpha1.Interface{{
		Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: driverName, Addresses: []string{"192.0.2.1/24"},
		Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}},
	}}}
	if err := c.Client.Create(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	said := client.RawPatch(types.MergePatchType, []byte(`{"status":{"sandbox":{"id":"c0ffee","state":"Detached"}}}`))
	if err := c.Client.Status().Patch(t.Context(), live, said); err != nil {
		t.Fatal(err)
	}
	var given time.Time
	// What is kept for a claim can be given again in the second of a deletion.
	since := func(_ driver.Owner, i v1alpha1.Interface, moment time.Time) bool {
		if i.Claim == "" {
			moment = moment.Add(time.Second)
		}
		return !given.Before(moment)
	}
	r := New(Config{Client: c.Client, Live: c.Client, Drivers: driver.Table{driverName: {GivenSince: since}}})
	cases := []struct {
		name  string
		given time.Time
		claim string
		uid   types.UID
		want  proof
	}{
		{"nothing is the pod's any more", time.Time{}, "", "earlier", detached},
		{"given before the deletion", now.Add(-2 * time.Minute), "", "earlier", detached},
		{"given in the second of the deletion", now.Add(-time.Minute + 900*time.Millisecond), "", "earlier", detached},
		{"given in the second of the deletion, for a claim", now.Add(-time.Minute + 900*time.Millisecond), "t/db-0", "earlier", noProof},
		{"given since, and the record is an earlier one", now, "", "earlier", noProof},
		{"given since, and the record is still that", now, "", live.UID, detached},
	}
	for _, tc := range cases {
		given = tc.given
		record := plugged()
		record.Namespace, record.Name, record.UID, record.Spec = live.Namespace, live.Name, tc.uid, *live.Spec.DeepCopy()
		record.Spec.Interfaces[0].Claim = tc.claim
		record.Status.Sandbox.State = v1alpha1.SandboxDetached
		v, judged, err := r.prove(t.Context(), record)
		if err != nil || v.proof != tc.want || (judged == nil) != (tc.want == noProof) {
			t.Errorf("%s: %q, record %v, error %v", tc.name, v.proof, judged, err)
		}
	}
	if err := r.dropFinalizer(t.Context(), live); err != nil {
		t.Error(err)
	}
}
