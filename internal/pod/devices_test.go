package pod

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func requesting(amounts ...map[string]string) *corev1.Pod {
	p := &corev1.Pod{}
	for _, a := range amounts {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
		for name, amount := range a {
			c.Resources.Requests[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func TestRequests(t *testing.T) {
	many := map[string]string{}
	for n := range 40 {
		many[fmt.Sprintf("example.com/d%d", n)] = "1"
	}
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"none", requesting(map[string]string{"cpu": "100m", "memory": "1Gi", "hugepages-2Mi": "4Mi", "attachable.kubernetes.io/x": "1", "kubernetes.io/y": "1"}), nil},
		{"one", requesting(map[string]string{"cpu": "1", "intel.com/a": "2"}), map[string]int64{"intel.com/a": 2}},
		{"of several containers", requesting(map[string]string{"intel.com/a": "2"}, nil, map[string]string{"intel.com/a": "1", "intel.com/b": "1"}), map[string]int64{"intel.com/a": 3, "intel.com/b": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Requests(tc.pod)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			kept := &corev1.Pod{}
			for _, c := range tc.pod.Spec.Containers {
				AddRequests(&kept.Spec, c.Resources.Requests)
			}
			if diff := cmp.Diff(got, Requests(kept)); diff != "" {
				t.Errorf("of the part that the cache keeps: -whole +kept:\n%s", diff)
			}
		})
	}
	if got := Requests(requesting(many)); len(got) != maxResources {
		t.Errorf("%d resources are read", len(got))
	}
}
