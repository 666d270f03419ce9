package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// A pod's successor of the same name has a record beside its predecessor's. Nothing is
// kept for pods whose records are gone.
func TestNames(t *testing.T) {
	record := func(pod, name string) *v1alpha1.PodAttachment {
		return &v1alpha1.PodAttachment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       v1alpha1.PodAttachmentSpec{PodName: pod},
		}
	}
	n := newMemory()
	web := types.NamespacedName{Namespace: "default", Name: "web-0"}
	steps := []struct {
		do     func(*v1alpha1.PodAttachment)
		record *v1alpha1.PodAttachment
		want   []string
	}{
		{n.shown, record("web-0", "web-0-11111111"), []string{"web-0-11111111"}},
		{n.shown, record("web-0", "web-0-11111111"), []string{"web-0-11111111"}},
		{n.shown, record("web-1", "web-1-33333333"), []string{"web-0-11111111"}},
		{n.shown, record("web-0", "web-0-22222222"), []string{"web-0-11111111", "web-0-22222222"}},
		{n.gone, record("web-0", "web-0-11111111"), []string{"web-0-22222222"}},
		{n.gone, record("web-1", "web-1-33333333"), []string{"web-0-22222222"}},
		{n.gone, record("web-0", "web-0-22222222"), nil},
		{n.gone, record("web-0", "web-0-22222222"), nil},
	}
	for i, step := range steps {
		step.do(step.record)
		if diff := cmp.Diff(step.want, n.namesOf(web)); diff != "" {
			t.Fatalf("step %d: -want +got:\n%s", i, diff)
		}
	}
	if len(n.names) != 0 {
		t.Errorf("left: %v", n.names)
	}
}
