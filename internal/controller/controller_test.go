package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

func TestLifeOfAPod(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	p := h.Pod("web", h.node)
	record := h.record(p)

	want := v1alpha1.PodAttachmentSpec{
		PodName:  "web",
		PodUID:   p.UID,
		NodeName: h.node,
		NodeUID:  h.nodeUID(h.node),
		Interfaces: []v1alpha1.Interface{{
			Name: "eth0", Network: "default", Driver: driverName, Default: true,
			Addresses: []string{"192.0.2.1/32"},
			Binding:   v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}},
		Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0", Addresses: "192.0.2.1"},
	}
	if diff := cmp.Diff(want, record.Spec); diff != "" {
		t.Errorf("the record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{v1alpha1.ReleaseFinalizer}, record.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if len(record.OwnerReferences) != 1 || record.OwnerReferences[0].UID != p.UID {
		t.Errorf("the pod does not own its record: %+v", record.OwnerReferences)
	}

	h.setSandbox(p, v1alpha1.SandboxAttached)
	h.delete(p)
	h.waitState(p, "deleting")
	h.settle("other")
	if h.heldBy(p) != 1 {
		t.Fatal("the interface was taken back while the node holds it")
	}
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
	if h.heldBy(p) != 0 {
		t.Error("the interface was not taken back")
	}
}

// A pod costs the controller one create and one patch in its life, and no read.
// Kubernetes' garbage collector asks for the deletion; the controller does if the
// collector is slow.
func TestWritesOfALife(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	h.settle("first") // caches are listed and watched
	h.faults.Reset()
	p := h.Pod("web", h.node)
	h.record(p)
	h.setSandbox(p, v1alpha1.SandboxAttached)
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
	h.settle("last")
	counts := h.faults.Counts()
	if counts["create podattachments"] != 2 || counts["patch podattachments"] != 1 || counts["delete podattachments"] > 1 {
		t.Errorf("writes: %v, want two creates, one patch, at most one delete", counts)
	}
	for what, n := range counts {
		if strings.HasPrefix(what, "get ") && !strings.Contains(what, "leases") || strings.HasPrefix(what, "list ") {
			t.Errorf("%d reads: %s", n, what)
		}
	}
}

func TestPodsThatGetNothing(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	foreign := h.Node(h.node + "-foreign")
	none := []*corev1.Pod{
		h.Pod("host", h.node, func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		h.Pod("unscheduled", "", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"no": "such-node"} }),
		h.Pod("elsewhere", foreign.Name),
	}
	h.settle("served")
	for _, p := range none {
		if got := h.state(t.Context(), p); got != "absent" {
			t.Errorf("pod %s: its attachment is %s", p.Name, got)
		}
	}
	// A node that joins later brings its pods.
	if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err != nil {
		t.Fatal(err)
	}
	before := foreign.DeepCopy()
	foreign.Labels["fairlead.dev/test"] = h.Namespace
	if err := h.Client.Patch(t.Context(), foreign, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	h.record(none[2])
}

// A finished pod gives its network back while its object stays (whereabouts#550:
// completed pods kept their addresses).
func TestFinishedPod(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	p := h.Pod("job", h.node)
	h.record(p)
	h.setSandbox(p, v1alpha1.SandboxAttached)
	before := p.DeepCopy()
	p.Status.Phase = corev1.PodSucceeded
	if err := h.Client.Status().Patch(t.Context(), p, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
	h.settle("other")
	if h.heldBy(p) != 0 || h.state(t.Context(), p) != "absent" {
		t.Errorf("held %d, attachment %s: want nothing, for good", h.heldBy(p), h.state(t.Context(), p))
	}
}

// kuryr 1.5 and bugs 1854928, 1963677: a StatefulSet's pod is created again under its
// name before the record of its predecessor is gone. Neither waits for the other, and
// they never share an address.
func TestSuccessorDoesNotWait(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	old := h.Pod("db-0", h.node)
	first := h.record(old)
	h.setSandbox(old, v1alpha1.SandboxAttached)
	h.delete(old)
	next := h.Pod("db-0", h.node)
	second := h.record(next)
	if cmp.Equal(first.Spec.Interfaces[0].Addresses, second.Spec.Interfaces[0].Addresses) {
		t.Errorf("two incarnations share %v", first.Spec.Interfaces[0].Addresses)
	}
	h.waitState(old, "deleting")
	h.setSandbox(old, v1alpha1.SandboxDetached)
	h.waitState(old, "absent")
	if h.state(t.Context(), next) != "kept" || h.heldBy(next) != 1 {
		t.Errorf("the successor's attachment is %s, holding %d", h.state(t.Context(), next), h.heldBy(next))
	}
}

// The record of a live pod is deleted by hand. It stays while the node holds it, and is
// written again afterwards with the same interfaces. Giving them back would be wrong: a
// create that takes minutes could bring the record back when other pods have its
// addresses (make sim SEED=93).
func TestRecordDeletedByHand(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	p := h.Pod("web", h.node)
	record := h.record(p)
	if err := h.Client.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	h.settle("other")
	if h.state(t.Context(), p) != "deleting" || h.heldBy(p) != 1 {
		t.Fatalf("attachment %s, holding %d", h.state(t.Context(), p), h.heldBy(p))
	}
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "kept")
	again := h.record(p)
	if again.UID == record.UID {
		t.Error("it is still the same object")
	}
	if diff := cmp.Diff(record.Spec, again.Spec); diff != "" || h.driver.Calls("release") != 0 {
		t.Errorf("%d released; the record (-before +after):\n%s", h.driver.Calls("release"), diff)
	}
}

func TestDetachedIsEvidenceOnlyOfADeletedRecord(t *testing.T) {
	now := metav1.Now()
	detached := &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached}
	cases := []struct {
		name     string
		deletion *metav1.Time
		sandbox  *v1alpha1.Sandbox
		want     bool
	}{
		{"nothing said", &now, nil, false},
		{"attached", &now, &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached}, false},
		{"detached before the deletion", nil, detached, false},
		{"detached", &now, detached, true},
	}
	for _, tc := range cases {
		r := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deletion}, Status: v1alpha1.PodAttachmentStatus{Sandbox: tc.sandbox}}
		if got := proof.Detached(r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// I8: one object's error stops no other object, and the object recovers by itself.
func TestPoisonDelaysItselfOnly(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	d.FailWith(func(method string, o driver.Owner) error {
		if o.PodName == "poison" {
			return fmt.Errorf("%w: the backend refuses", fault.ErrUnavailable)
		}
		return nil
	})
	h := start(t, cluster.New(t), d)
	poison := h.Pod("poison", h.node)
	note := h.event(poison, "NetworkUnavailable")
	if !strings.Contains(note, "the backend refuses") || !strings.Contains(note, "eth0") {
		t.Errorf("the event says %q", note)
	}
	healthy := h.Pod("healthy", h.node)
	h.record(healthy)
	d.FailWith(nil)
	h.record(poison)
}

// whereabouts 1.6: its event reported a collected address although the clean-up had
// failed, and after three tries the pod was forgotten.
func TestFailingReleaseIsShownAndNeverForgotten(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	h := start(t, cluster.New(t), d)
	p := h.Pod("web", h.node)
	h.record(p)
	d.FailWith(func(method string, _ driver.Owner) error {
		if method == "release" {
			return errors.New("the backend is on fire")
		}
		return nil
	})
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	if note := h.event(p, eventFailed); !strings.Contains(note, "192.0.2.1") || !strings.Contains(note, "default") || !strings.Contains(note, "on fire") {
		t.Errorf("the event says %q", note)
	}
	h.Eventually(t, "the condition Released=False", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		c := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "on fire") {
			return fmt.Errorf("conditions %+v", record.Status.Conditions)
		}
		return nil
	})
	h.Eventually(t, "a fifth try", func(context.Context) error {
		if n := d.Calls("release"); n < 5 {
			return fmt.Errorf("%d tries", n)
		}
		return nil
	})
	d.FailWith(nil)
	h.waitState(p, "absent")
	if note := h.event(p, eventCollected); !strings.Contains(note, "192.0.2.1") {
		t.Errorf("the event says %q", note)
	}
}

// withSecond is a source that asks for one more interface of each pod.
func withSecond(p *corev1.Pod) ([]pod.Interface, error) {
	return []pod.Interface{{Name: "net1", Network: v1alpha1.DefaultNetwork}}, nil
}

// spiderpool#2901: a pod with several interfaces took more addresses at each try, if one
// of them failed. Here the pod keeps the first interface, and no record shows a part of
// them.
func TestHalfIsKept(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	d.FailWith(func(method string, o driver.Owner) error {
		if method == "ensure" && o.Interface == "net1" {
			return fmt.Errorf("%w: none left", fault.ErrExhausted)
		}
		return nil
	})
	h := start(t, cluster.New(t), d, withSource(withSecond))
	p := h.Pod("web", h.node)
	for range 3 {
		h.event(p, "NetworkExhausted")
		if n := h.heldBy(p); n != 1 {
			t.Errorf("%d held, want eth0 alone", n)
		}
	}
	h.waitState(p, "absent")
	d.FailWith(nil)
	record := h.record(p)
	if record.Spec.Summary.Interfaces != "eth0,net1" || h.heldBy(p) != 2 {
		t.Errorf("interfaces %q, %d held", record.Spec.Summary.Interfaces, h.heldBy(p))
	}
}

// whereabouts 1.10 defects 1 and 2: the reply to a write was lost, and a pod got an
// address that was recorded nowhere. Here the record is found again, and its interfaces
// stay with it.
func TestLostReplies(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	lost := map[string]bool{}
	h.faults.Set(func(verb, resource, subresource, name string) cluster.Fault {
		key := verb + resource
		if resource == "podattachments" && subresource == "" && (verb == "create" || verb == "patch") && !lost[key] {
			lost[key] = true
			return cluster.Fault{Kind: cluster.LoseReply}
		}
		return cluster.Fault{}
	})
	p := h.Pod("web", h.node)
	record := h.record(p)
	h.settle("other")
	if h.heldBy(p) != 1 {
		t.Fatalf("%d held for a pod with record %v", h.heldBy(p), record.Spec.Summary.Addresses)
	}
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
	if h.heldBy(p) != 0 {
		t.Error("not taken back")
	}
	if !lost["createpodattachments"] || !lost["patchpodattachments"] {
		t.Errorf("not both replies were lost: %v", lost)
	}
}

// If a create is refused, the pod keeps the interfaces obtained for it, and the next try
// adopts them: another leader may have adopted them and be writing the record.
func TestRefusedCreateKeeps(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8), withSource(func(p *corev1.Pod) ([]pod.Interface, error) {
		return []pod.Interface{{Name: "net1", Network: "default/blue"}}, nil
	}))
	h.faults.Set(func(verb, resource, _, _ string) cluster.Fault {
		if verb == "create" && resource == "podattachments" {
			return cluster.Fault{Kind: cluster.Refuse}
		}
		return cluster.Fault{}
	})
	p := h.Pod("bad", h.node)
	for range 3 {
		h.event(p, "NetworkNotReady")
		if n := h.heldBy(p); n != 2 {
			t.Errorf("%d interfaces held, want eth0 and net1", n)
		}
	}
}

// If a driver reports that an interface became active, the record shows it.
func TestActivation(t *testing.T) {
	d := drivertest.NewMemory(driverName, 8)
	d.SetActive(false)
	h := start(t, cluster.New(t), d)
	p := h.Pod("web", h.node)
	if record := h.record(p); !record.Spec.Interfaces[0].WaitForActive || active(record, "eth0") {
		t.Fatalf("waits %v, status %v", record.Spec.Interfaces[0].WaitForActive, record.Status.Interfaces)
	}
	h.Eventually(t, "the record to say what is waited for", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		if s := record.Status.Interfaces; len(s) != 1 || s[0].Active || !strings.Contains(s[0].Message, driverName) {
			return fmt.Errorf("status %+v", record.Status)
		}
		return nil
	})
	d.SetActive(true)
	h.Eventually(t, "the interface to be active", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		if !active(record, "eth0") || record.Status.Interfaces[0].Message != "" {
			return fmt.Errorf("status %+v", record.Status)
		}
		return nil
	})
}

// kuryr, podStatic: the identity of a static pod is in its mirror's annotation.
// own review 2: nothing is obtained for a pod whose record the API server would refuse.
func TestNothingIsObtainedForWhatCannotBeWritten(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8), withSource(func(p *corev1.Pod) ([]pod.Interface, error) {
		if p.Name != "bad" {
			return nil, nil
		}
		return []pod.Interface{{Name: "net1", Network: v1alpha1.DefaultNetwork, Default: true}}, nil // two defaults: the schema refuses
	}))
	p := h.Pod("bad", h.node)
	if note := h.event(p, "NetworkInvalid"); !strings.Contains(note, `spec.interfaces: "2 elements": at most one interface may be the default`) {
		t.Errorf("the event says %q", note)
	}
	h.settle("other")
	if n := h.heldBy(p); n != 0 || h.state(t.Context(), p) != "absent" {
		t.Errorf("%d interfaces held, and the record is %s", n, h.state(t.Context(), p))
	}
}

func TestStaticPod(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8))
	p := h.Pod("static", h.node, func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0123456789abcdef"}
	})
	record := h.record(p)
	if record.Spec.PodUID != "0123456789abcdef" || record.Spec.APIUID != p.UID || record.Name != pod.AttachmentName("static", p.UID) {
		t.Errorf("record %s of pod UID %s, own UID %s", record.Name, record.Spec.PodUID, record.Spec.APIUID)
	}
	if h.heldBy(p) != 1 {
		t.Errorf("held are %+v, want what the pod's own UID has", h.driver.Held())
	}
}

// A former version identified static pods by the UID in their annotation. The record that
// it wrote stays the pod's, and the interface in it is given back when the pod goes.
func TestStaticPodOfAFormerVersion(t *testing.T) {
	c, d := cluster.New(t), drivertest.NewMemory(driverName, 8)
	p := c.Pod("static", c.Namespace, func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0123456789abcdef"}
	})
	before := pod.Key{Namespace: p.Namespace, Name: p.Name, UID: "0123456789abcdef"}
	r := drivertest.Request(1)
	r.Namespace, r.PodName, r.PodUID, r.NodeName = p.Namespace, p.Name, before.UID, c.Namespace
	a, err := d.Ensure(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	record := pod.Record(pod.Identity{Key: before, Node: c.Namespace}, []v1alpha1.Interface{a.Interface})
	record.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(p)}
	if err := c.Client.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	h := start(t, c, d)
	h.settle("other")
	var list v1alpha1.PodAttachmentList
	if err := c.Client.List(t.Context(), &list, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || len(d.Held()) != 2 {
		t.Fatalf("%d records and %+v, want the former one and that of the other pod", len(list.Items), d.Held())
	}
	h.delete(p)
	key := client.ObjectKeyFromObject(record)
	h.Eventually(t, "the former record to be released", func(ctx context.Context) error {
		got := &v1alpha1.PodAttachment{}
		err := c.Client.Get(ctx, key, got)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && got.DeletionTimestamp != nil && got.Status.Sandbox == nil {
			got.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached}
			err = c.Client.Status().Update(ctx, got)
		}
		return errors.Join(err, errors.New("it is there"))
	})
	if left := d.Held(); len(left) != 1 || left[0].PodName != "other" {
		t.Errorf("held are %+v, want what the other pod has", left)
	}
}
