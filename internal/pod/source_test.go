package pod_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/sourcetest"
)

func annotated(name, key, text string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, Annotations: map[string]string{key: text}}}
}

func TestContractOfAdditionalPools(t *testing.T) {
	sourcetest.Run(t, pod.FromAdditionalPools,
		[]*corev1.Pod{annotated("one", v1alpha1.AnnotationAdditionalPools, "storage"), annotated("two", pod.AnnotationAdditionalSubnets, `["storage","backup"]`)},
		[]*corev1.Pod{annotated("no-name", v1alpha1.AnnotationAdditionalPools, "storage,/")})
}

func TestFromAdditionalPools(t *testing.T) {
	got, err := pod.FromAdditionalPools(annotated("web", v1alpha1.AnnotationAdditionalPools, "storage,backup"))
	want := []pod.Interface{
		{Network: "default", Pools: []string{"storage"}, OwnGateways: true},
		{Network: "default", Pools: []string{"backup"}, OwnGateways: true},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}
