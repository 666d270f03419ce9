package slim

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// labelsOf returns labels with a number of bytes, six in each.
func labelsOf(bytes int) map[string]string {
	out := map[string]string{}
	for i := range bytes / 6 {
		out[fmt.Sprintf("a%05x", i)] = ""
	}
	return out
}

// A cache keeps a bounded part of a pod whatever its author writes: Kubernetes bounds the
// annotations, and neither the labels nor the texts of the owners. The owner of a pod whose
// labels are left out is kept, and such a pod gets no interface.
func TestHostilePods(t *testing.T) {
	long := strings.Repeat("n", maxOwner+1)
	const tooMany = pod.MaxLabels/6 + 1
	for name, tc := range map[string]struct {
		hostile       func(p *corev1.Pod)
		labels, owned int
		leftOut       string
	}{
		"as many labels as are read": {func(p *corev1.Pod) { p.Labels = labelsOf(pod.MaxLabels) }, tooMany - 1, 1, ""},
		"too many labels":            {func(p *corev1.Pod) { p.Labels = labelsOf(tooMany * 6) }, 0, 1, strconv.Itoa(tooMany * 6)},
		"too many labels of no workload": {func(p *corev1.Pod) {
			p.Labels, p.OwnerReferences = labelsOf(tooMany*6), nil
		}, 0, 0, strconv.Itoa(tooMany * 6)},
		"the owner's name":    {func(p *corev1.Pod) { p.OwnerReferences[0].Name = long }, 2, 0, ""},
		"the owner's UID":     {func(p *corev1.Pod) { p.OwnerReferences[0].UID = types.UID(long) }, 2, 0, ""},
		"the owner's kind":    {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = long }, 2, 0, ""},
		"the owner's version": {func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = long }, 2, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPod()
			tc.hostile(p)
			s := new(pods)
			got, err := s.decode(sentPod(t, p.DeepCopy()))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(keptOf(t, p), got); diff != "" {
				t.Errorf("client-go's and ours (-want +got):\n%s", diff)
			}
			if len(got.Labels) != tc.labels || len(got.OwnerReferences) != tc.owned || got.Annotations[pod.AnnotationLabelsLeftOut] != tc.leftOut {
				t.Errorf("%d labels, %d owners, left out %q; want %d, %d, %q", len(got.Labels), len(got.OwnerReferences),
					got.Annotations[pod.AnnotationLabelsLeftOut], tc.labels, tc.owned, tc.leftOut)
			}
			for _, w := range s.workloads {
				if len(w.wire) > maxShared || labelsSize(w.labels) > maxShared {
					t.Errorf("a workload keeps %d bytes of labels when its pods are gone", labelsSize(w.labels))
				}
			}
			_, err = pod.Rules{Default: true}.Interfaces(got)
			if (err != nil) != (tc.leftOut != "") {
				t.Errorf("interfaces: %v", err)
			}
		})
	}
}

// Of the other objects that tenants write, neither labels nor owners without bounds are kept.
func TestHostileObjects(t *testing.T) {
	labels := labelsOf(pod.MaxLabels)
	labels[run.LabelManagedBy] = "fairlead-controller"
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "1"}
	bad := owner
	bad.Name = strings.Repeat("n", maxOwner+1)
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "web-0", Labels: labels, Annotations: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{bad, owner}, ManagedFields: managed,
	}}
	network := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": "{}"}}}
	network.SetName("lan")
	network.SetLabels(labels)
	network.SetAnnotations(map[string]string{"a": "b"})
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}, ManagedFields: managed}}
	for _, o := range []any{claim, network, pool} {
		if _, err := slimOther(o); err != nil {
			t.Fatal(err)
		}
	}
	kept := map[string]string{run.LabelManagedBy: "fairlead-controller"}
	want := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Labels: kept, OwnerReferences: []metav1.OwnerReference{owner}}}
	if diff := cmp.Diff(want, claim); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kept, network.GetLabels()); diff != "" || network.GetAnnotations()["a"] != "b" {
		t.Errorf("network, labels (-want +got):\n%s", diff)
	}
	if pool.Labels["a"] != "b" || pool.ManagedFields != nil {
		t.Errorf("pool: %v", pool.ObjectMeta)
	}
}
