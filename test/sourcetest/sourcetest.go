// Package sourcetest has the contract of sources of interfaces as tests.
package sourcetest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Run tests a source with pods that use it. hostile are pods whose request is wrong: the
// source returns an error for each.
func Run(t *testing.T, source pod.Source, asking, hostile []*corev1.Pod) {
	t.Helper()
	t.Run("a pod that does not use it gets nothing", func(t *testing.T) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web"}, Spec: corev1.PodSpec{NodeName: "node-1"}}
		if got, err := source(p); len(got) > 0 || err != nil {
			t.Errorf("%v, error %v", got, err)
		}
	})
	for _, p := range asking {
		t.Run("interfaces of pod "+p.Name, func(t *testing.T) { asks(t, source, p) })
	}
	for _, p := range hostile {
		t.Run("error for pod "+p.Name, func(t *testing.T) {
			if got, err := source(p); err == nil || len(got) > 0 {
				t.Errorf("%v, error %v", got, err)
			}
		})
	}
}

// asks tests the interfaces of one pod.
func asks(t *testing.T, source pod.Source, p *corev1.Pod) {
	before := p.DeepCopy()
	got, err := source(p)
	if err != nil || len(got) == 0 {
		t.Fatalf("%d interfaces, error %v", len(got), err)
	}
	if diff := cmp.Diff(before, p); diff != "" {
		t.Errorf("the source changed the pod, which is the cache's (-before +after):\n%s", diff)
	}
	again, err := source(p)
	if diff := cmp.Diff(got, again, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || err != nil {
		t.Errorf("the second call returned other interfaces: error %v (-first +second):\n%s", err, diff)
	}
	for _, i := range got {
		namespace, name, further := strings.Cut(i.Network, "/")
		if i.Network != v1alpha1.DefaultNetwork && (!further || namespace == "" || name == "") {
			t.Errorf("network %q: must be %q or namespace/name of a NetworkAttachmentDefinition", i.Network, v1alpha1.DefaultNetwork)
		}
		if i.Default {
			t.Errorf("interface %q is the default one, which no source gives", i.Name)
		}
	}
	if _, err := pod.Interfaces(p, []pod.Interface{pod.Default(false)}, []pod.Source{source}); err != nil {
		t.Errorf("beside the default interface: %v", err)
	}
}
