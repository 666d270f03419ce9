package npwg

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// The driver of a network is that of its annotation, otherwise that of its type. Where
// Fairlead is only the network's IPAM, another plugin makes the interface.
func TestDriverOfANetwork(t *testing.T) {
	n := New(Config{Drivers: map[string]string{nad.Type: "native"}})
	n.setUnread(nil)
	const ours, none = `{"type":"bridge","ipam":{"type":"fairlead-ipam"}}`, `{"type":"any"}`
	for _, tc := range []struct {
		name, config, annotation string
		served, addressOnly      bool
		driver                   string
	}{
		{"by its type", ours, "", true, true, "native"},
		{"by the annotation", none, "cloud", true, false, "cloud"},
		{"by the annotation, before its type", ours, "cloud", true, true, "cloud"},
		{"of another IPAM", none, "", false, false, ""},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": tc.config}}}
		o.SetNamespace("blue")
		o.SetName("lab")
		if tc.annotation != "" {
			o.SetAnnotations(map[string]string{v1alpha1.AnnotationDriver: tc.annotation})
		}
		n.observe(o)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Annotations: map[string]string{pod.AnnotationNetworks: "lab"}}}
		got, err := n.Source(p)
		if err != nil || (len(got) == 1) != tc.served {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
			continue
		}
		if tc.served && (got[0].Driver != tc.driver || got[0].AddressOnly != tc.addressOnly) {
			t.Errorf("%s: %+v", tc.name, got[0])
		}
		chosen, err := n.Chosen(p, pod.Selection{Namespace: "blue", Name: "lab", Interface: "eth0"})
		if tc.served && (err != nil || len(chosen) != 1 || chosen[0].Driver != tc.driver || !chosen[0].Default || !chosen[0].AddressOnly) {
			t.Errorf("%s, for the default interface: %+v, %v", tc.name, chosen, err)
		}
	}
}
