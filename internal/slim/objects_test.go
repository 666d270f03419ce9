package slim

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// A cached PodAttachment has all fields of the API server's, except managed fields.
// Patches are computed against it, and a missing field would be removed from the
// object.
func TestSlimAttachment(t *testing.T) {
	record := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-12345678", UID: "1", ResourceVersion: "7",
			Finalizers:      []string{v1alpha1.ReleaseFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "12345678"}, {APIVersion: "v1", Kind: "Other", Name: "o", UID: "2"}},
		},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: "web", PodUID: "12345678", NodeName: "node-1",
			Interfaces: []v1alpha1.Interface{
				{Name: "eth0", Network: "default", Driver: "native", Addresses: []string{"10.1.0.5/24"}, Gateways: []string{"10.1.0.1"}, Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}}},
				{Name: "net1", Network: "default/other", Driver: "native", Pool: "other"},
			},
			Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0,net1", Addresses: "10.1.0.5"},
		},
		Status: v1alpha1.PodAttachmentStatus{
			Sandbox:    &v1alpha1.Sandbox{ID: "c0ffee", BootID: "b", State: v1alpha1.SandboxAttached},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAttached, Status: metav1.ConditionTrue, Reason: "Plugged", Message: "plugged"}},
		},
	}
	want := record.DeepCopy()
	record.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "fairlead-node"}}
	got, err := new(attachments).slim(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// own review 16: annotations with Fairlead's or the network plumbing working group's
// prefix were kept, used or not, in any length: 225 kB for one pod.
func TestSlimPodBoundsAnnotations(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	p := testPod()
	p.Annotations = map[string]string{
		"fairlead.dev/anything-at-all": long, "k8s.v1.cni.cncf.io/network-status": long, "k8s.v1.cni.cncf.io/resourceName": "a",
		pod.AnnotationNetworks: long, pod.AnnotationDefaultNetwork: long, corev1.MirrorPodAnnotationKey: long,
		v1alpha1.AnnotationAddresses: long, v1alpha1.AnnotationClaim: long, v1alpha1.AnnotationPools: "web",
	}
	slimmed := keptOf(t, p)
	decoded, err := new(pods).decode(sentPod(t, p.DeepCopy()))
	if err != nil {
		t.Fatal(err)
	}
	for name, kept := range map[string]*corev1.Pod{"slimmed": slimmed, "decoded": decoded} {
		n := 0
		for key, value := range kept.Annotations {
			n += len(key) + len(value)
		}
		if n > 20<<10 || kept.Annotations[v1alpha1.AnnotationPools] != "web" || len(kept.Annotations) != 7 {
			t.Errorf("%s: %d bytes are kept of annotations: %d of them", name, n, len(kept.Annotations))
		}
		// The kept part shows that the value is too long.
		if _, err := pod.Networks(kept); err == nil || !strings.Contains(err.Error(), "it has more than 16384 bytes") {
			t.Errorf("%s: networks: %v", name, err)
		}
		if _, _, err := pod.Chosen(kept); err == nil {
			t.Errorf("%s: a default network is chosen", name)
		}
		if _, err := pod.WishesOf(kept); err == nil || !strings.Contains(err.Error(), "annotation "+v1alpha1.AnnotationAddresses+": it has more than 256 bytes") {
			t.Errorf("%s: wishes: %v", name, err)
		}
	}
}

// If an informer missed the deletion of an object, it passes a DeletedFinalStateUnknown
// instead of a PodAttachment.
func TestSlimOther(t *testing.T) {
	gone := cache.DeletedFinalStateUnknown{Key: "default/web"}
	if got, err := new(attachments).slim(gone); err != nil || got != any(gone) {
		t.Errorf("%v, %v", got, err)
	}
}

// A cached pod has all fields that the controller reads. Pods of a workload share their
// labels.
func TestSlimPod(t *testing.T) {
	s := new(pods)
	slimmed := func(name string, labels map[string]string) *corev1.Pod {
		got, err := s.slim(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, GenerateName: "web-", UID: "12345678", ResourceVersion: "7", Labels: labels,
				Annotations: map[string]string{
					"checksum/config": "0", v1alpha1.AnnotationPools: "blue",
					pod.AnnotationNetworks: "storage", corev1.MirrorPodAnnotationKey: "static",
				},
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "example.com/v1", Kind: "Other", Name: "o", UID: "2"},
					{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "3", Controller: new(true), BlockOwnerDeletion: new(true)},
				},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
			},
			Spec:   corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.5"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return got.(*corev1.Pod)
	}
	first, second := slimmed("web-0", map[string]string{"app": "web"}), slimmed("web-1", map[string]string{"app": "web"})
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-0", UID: "12345678", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{v1alpha1.AnnotationPools: "blue", pod.AnnotationNetworks: "storage", corev1.MirrorPodAnnotationKey: "static"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "3", Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if reflect.ValueOf(first.Labels).Pointer() != reflect.ValueOf(second.Labels).Pointer() {
		t.Error("two pods of one workload do not share equal labels")
	}
	if other := slimmed("web-2", map[string]string{"app": "shop"}); other.Labels["app"] != "shop" {
		t.Errorf("a pod with labels of its own has %v", other.Labels)
	}
}
