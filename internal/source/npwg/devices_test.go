package npwg

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/sourcetest"
)

// withDevices returns networks of blue by the name of their resource: intel.com/a is that of
// blue/a. The devices of blue/closed are not open to it.
func withDevices() *Networks {
	n := attaching(nil)
	for name, resource := range map[string]string{"a": "intel.com/a", "b": "intel.com/b", "c": "intel.com/c", "closed": "vendor.com/closed"} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": `{"cniVersion":"1.0.0","type":"sriov"}`}}}
		o.SetNamespace("blue")
		o.SetName(name)
		o.SetAnnotations(map[string]string{"k8s.v1.cni.cncf.io/resourceName": resource})
		n.observe(o)
	}
	return n
}

func requesting(name, networks string, amounts map[string]string) *corev1.Pod {
	requests := corev1.ResourceList{}
	for name, amount := range amounts {
		requests[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	p := podIn("blue", networks)
	p.Name = name
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
	return p
}

func TestContractOfDevices(t *testing.T) {
	sourcetest.Run(t, withDevices().Devices,
		[]*corev1.Pod{requesting("two", "", map[string]string{"intel.com/a": "2"})},
		[]*corev1.Pod{requesting("closed", "", map[string]string{"vendor.com/closed": "1"}), requesting("many", "", map[string]string{"intel.com/a": "1G"})})
}

func TestDevices(t *testing.T) {
	away := errors.New("not read")
	for _, tc := range []struct {
		name     string
		others   bool
		unread   error
		selects  string
		requests map[string]string
		want     []string
		err      error
	}{
		{name: "one for each device", requests: map[string]string{"intel.com/b": "1", "intel.com/a": "2"}, want: []string{"blue/a", "blue/a", "blue/b"}},
		{name: "resources that no network names", requests: map[string]string{"nvidia.com/gpu": "8", "cpu": "4"}},
		{name: "those that are selected", selects: "a,c@fast", requests: map[string]string{"intel.com/a": "2", "intel.com/c": "1"}, want: []string{"blue/a"}},
		{name: "more selected than requested", selects: "a,a", requests: map[string]string{"intel.com/a": "1"}},
		{name: "another program attaches", others: true, unread: away, requests: map[string]string{"intel.com/a": "1"}},
		{name: "networks that are not read", unread: away, requests: map[string]string{"intel.com/a": "1"}, err: fault.ErrUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := withDevices()
			n.cfg.Attaches = func(*corev1.Pod) bool { return !tc.others }
			n.setUnread(tc.unread)
			got, err := n.Devices(requesting("p", tc.selects, tc.requests))
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
	var _ pod.Source = withDevices().Devices
}
