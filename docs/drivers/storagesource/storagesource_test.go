package storagesource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/sourcetest"
)

func labelled(name, class string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, Labels: map[string]string{Label: class}}}
}

func TestContract(t *testing.T) {
	sourcetest.Run(t, Source, []*corev1.Pod{labelled("db", "fast")}, []*corev1.Pod{labelled("no-name", "a_b")})
}

func TestSource(t *testing.T) {
	got, err := Source(labelled("db", "fast"))
	want := []pod.Interface{{Name: "storage0", Network: "default", Pools: []string{"storage-fast"}, OwnGateways: true}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}
