package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/fixed"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// The annotation network-status follows from the record: it is written when the node has
// plugged the interfaces, and again if somebody changes it. A pod with the default
// interface alone gets none.
func TestNetworkStatus(t *testing.T) {
	c := cluster.New(t)
	lan := func(p *corev1.Pod) ([]pod.Interface, error) {
		if p.Name != "two" {
			return nil, nil
		}
		return []pod.Interface{{Network: "blue/lan", Driver: fixed.Name, Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0", Mode: "bridge"}}}}, nil
	}
	h := start(t, c, drivertest.NewMemory(driverName, 16), withSource(lan), func(cfg *Config, _ ctrl.Manager) {
		cfg.Drivers = driver.Table{driverName: cfg.Drivers[driverName], fixed.Name: fixed.Parts()}
	})
	one, two := h.Pod("one", h.node), h.Pod("two", h.node)
	for _, p := range []*corev1.Pod{one, two} {
		h.record(p)
		h.setSandbox(p, v1alpha1.SandboxAttached, v1alpha1.SandboxLink{Name: "net1", MAC: "02:00:00:00:00:07", MTU: 9000})
	}
	status := func(p *corev1.Pod) (string, error) {
		now := &corev1.Pod{}
		err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(p), now)
		return now.Annotations[pod.AnnotationNetworkStatus], err
	}
	want := `"name":"blue/lan","interface":"net1","mac":"02:00:00:00:00:07","mtu":9000`
	wanted := func(context.Context) error {
		if got, err := status(two); err != nil || !strings.Contains(got, want) {
			return fmt.Errorf("error %w: the annotation is %q", err, got)
		}
		return nil
	}
	h.Eventually(t, "the network status", wanted)
	if err := h.Client.Patch(t.Context(), two, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+pod.AnnotationNetworkStatus+`":"[]"}}}`))); err != nil {
		t.Fatal(err)
	}
	h.Eventually(t, "the network status once more", wanted)
	h.settle("after")
	if got, err := status(one); err != nil || got != "" {
		t.Errorf("error %v: the pod with one interface has %q", err, got)
	}
}
