package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/prooftest"
)

// A heartbeat enqueues nothing: only a change that may be evidence does.
func TestNodeEvents(t *testing.T) {
	cases := []struct {
		name  string
		after *corev1.Node
		want  bool
	}{
		{"a heartbeat", prooftest.NodeOf(prooftest.Reported(0)), false},
		{"a label", prooftest.NodeOf(func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }), false},
		{"another taint", prooftest.NodeOf(prooftest.Tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), false},
		{"a boot", prooftest.NodeOf(prooftest.InBoot("boot-2")), true},
		{"a fence", prooftest.NodeOf(prooftest.Tainted(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)), true},
		{"unreachable", prooftest.NodeOf(prooftest.InState(corev1.ConditionUnknown)), true},
		{"made again", prooftest.NodeOf(func(n *corev1.Node) { n.UID = "2" }), true},
	}
	for _, tc := range cases {
		if got := nodeEvidence().Update(event.UpdateEvent{ObjectOld: prooftest.NodeOf(), ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A node's Detached is final, but the cache may be behind: a pod whose record was deleted
// may have a later record, which another leader wrote. The API server is asked only if
// something was given to the pod since (make sim SEED=5006).
func TestWordOfAnEarlierRecord(t *testing.T) {
	c := cluster.New(t)
	live := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "web-1", Finalizers: []string{v1alpha1.ReleaseFinalizer}}}
	live.Spec = v1alpha1.PodAttachmentSpec{PodName: "web", PodUID: "9b2e6f4e-1a2b-4c3d-8e9f-000000000001", NodeName: "n1", Interfaces: []v1alpha1.Interface{{
		Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: driverName, Addresses: []string{"192.0.2.1/24"},
		Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
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
	// An address kept for a claim can be given again in the second of a deletion.
	since := func(_ driver.Owner, i v1alpha1.Interface, moment time.Time) bool {
		if i.Claim == "" {
			moment = moment.Add(time.Second)
		}
		return !given.Before(moment)
	}
	r := New(Config{Client: c.Client, Live: c.Client, Drivers: driver.Table{driverName: {Evidence: driver.Evidence{GivenSince: since}}}})
	cases := []struct {
		name  string
		given time.Time
		claim string
		uid   types.UID
		want  proof.Proof
	}{
		{"nothing is the pod's any more", time.Time{}, "", "earlier", proof.ByWord},
		{"given before the deletion", prooftest.Now.Add(-2 * time.Minute), "", "earlier", proof.ByWord},
		{"given in the second of the deletion", prooftest.Now.Add(-time.Minute + 900*time.Millisecond), "", "earlier", proof.ByWord},
		{"given in the second of the deletion, for a claim", prooftest.Now.Add(-time.Minute + 900*time.Millisecond), "t/db-0", "earlier", proof.None},
		{"given since, and the record is an earlier one", prooftest.Now, "", "earlier", proof.None},
		{"given since, and the record is still that", prooftest.Now, "", live.UID, proof.ByWord},
	}
	for _, tc := range cases {
		given = tc.given
		record := prooftest.Plugged()
		record.Namespace, record.Name, record.UID, record.Spec = live.Namespace, live.Name, tc.uid, *live.Spec.DeepCopy()
		record.Spec.Interfaces[0].Claim = tc.claim
		record.Status.Sandbox.State = v1alpha1.SandboxDetached
		v, judged, err := r.releaser.prove(t.Context(), record)
		if err != nil || v.Proof != tc.want || (judged == nil) != (tc.want == proof.None) {
			t.Errorf("%s: %q, record %v, error %v", tc.name, v.Proof, judged, err)
		}
	}
	if err := r.releaser.dropFinalizer(t.Context(), live); err != nil {
		t.Error(err)
	}
}
