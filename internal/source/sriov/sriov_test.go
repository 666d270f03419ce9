package sriov

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/source/sourcetest"
)

// networks names a network by its resource: intel.com/a is that of blue/a.
type networks struct {
	others bool
	err    error
}

func (n networks) Attaches(*corev1.Pod) bool { return !n.others }

func (n networks) WithResource(p *corev1.Pod, resource string) (pod.Selection, bool, error) {
	name, ok := strings.CutPrefix(resource, "intel.com/")
	return pod.Selection{Namespace: p.Namespace, Name: name}, ok, n.err
}

func (n networks) ResourceOf(s pod.Selection) string { return "intel.com/" + s.Name }

func (n networks) Interface(_ *corev1.Pod, s pod.Selection) (pod.Interface, error) {
	if s.Name == "closed" {
		return pod.Interface{}, fmt.Errorf("%w: not open", driver.ErrInvalid)
	}
	return pod.Interface{Name: s.Interface, Network: s.Network()}, nil
}

func requesting(name, networks string, amounts map[string]string) *corev1.Pod {
	requests := corev1.ResourceList{}
	for name, amount := range amounts {
		requests[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, Annotations: map[string]string{pod.AnnotationNetworks: networks}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}},
	}
}

func TestContract(t *testing.T) {
	sourcetest.Run(t, Source(networks{}),
		[]*corev1.Pod{requesting("two", "", map[string]string{"intel.com/a": "2"})},
		[]*corev1.Pod{requesting("closed", "", map[string]string{"intel.com/closed": "1"}), requesting("many", "", map[string]string{"intel.com/a": "1G"})})
}

func TestSource(t *testing.T) {
	away := fmt.Errorf("%w: not read", driver.ErrUnavailable)
	for _, tc := range []struct {
		name     string
		networks networks
		selects  string
		requests map[string]string
		want     []string
		err      error
	}{
		{name: "one for each device", requests: map[string]string{"intel.com/b": "1", "intel.com/a": "2"}, want: []string{"blue/a", "blue/a", "blue/b"}},
		{name: "resources that no network names", requests: map[string]string{"nvidia.com/gpu": "8", "cpu": "4"}},
		{name: "those that are selected", selects: "a,c@fast", requests: map[string]string{"intel.com/a": "2", "intel.com/c": "1"}, want: []string{"blue/a"}},
		{name: "more selected than requested", selects: "a,a", requests: map[string]string{"intel.com/a": "1"}},
		{name: "another program attaches", networks: networks{others: true, err: away}, requests: map[string]string{"intel.com/a": "1"}},
		{name: "networks that are not read", networks: networks{err: away}, requests: map[string]string{"intel.com/a": "1"}, err: driver.ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Source(tc.networks)(requesting("p", tc.selects, tc.requests))
			if !errors.Is(err, tc.err) {
				t.Fatal(err)
			}
			var names []string
			for _, i := range got {
				names = append(names, i.Name+i.Network)
			}
			if diff := cmp.Diff(tc.want, names); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
