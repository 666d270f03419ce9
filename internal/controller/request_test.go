package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// A driver knows which interfaces have no default route, also the default interface of a pod
// whose default route is on another one.
func TestRequestsWithoutTheDefaultRoute(t *testing.T) {
	further := pod.Interface{Network: "blue/lan", OwnGateways: true}
	withRoute := pod.Interface{Network: "blue/lan", OwnGateways: true, DefaultRoute: true, Gateways: []string{"10.9.0.1"}}
	ofPool := pod.Interface{Network: "blue/lan", DefaultRoute: true}
	for name, tc := range map[string]struct {
		further []pod.Interface
		want    []bool
	}{
		"eth0 alone":             {nil, []bool{false}},
		"eth0 has the route":     {[]pod.Interface{further}, []bool{false, true}},
		"net1 has the route":     {[]pod.Interface{withRoute}, []bool{true, false}},
		"net2, that of its pool": {[]pod.Interface{further, ofPool}, []bool{true, true, false}},
	} {
		r := New(Config{Client: nothingCached{}, DefaultDriver: driverName, Drivers: driver.Table{driverName: {}}, Rules: pod.Rules{Sources: []pod.Source{
			func(*corev1.Pod) ([]pod.Interface, error) { return tc.further, nil },
		}}})
		p := &corev1.Pod{}
		interfaces, err := r.ensurer.requests.wanted(p)
		if err != nil {
			t.Fatal(err)
		}
		var got []bool
		for n := range interfaces {
			interfaces[n].Driver = driverName
			request, err := r.ensurer.requests.request(t.Context(), p, &driver.Request{}, &interfaces[n])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got = append(got, request.NoDefaultRoute)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
