package npwg

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// A driver alone reads the networks of its plugin types, and the networks without a
// configuration that an annotation gives to it.
func TestNetworksThatADriverReads(t *testing.T) {
	const ofType, byAnnotation = `{"cniVersion":"1.0.0","type":"far","x":"y"}`, `{"subnet":"a"}`
	for _, tc := range []struct {
		name, config string
		annotations  map[string]string
		asks         string
		driver       string
		settings     *pod.Settings
		err          string
	}{
		{name: "by its plugin", config: ofType, driver: "cloud", settings: &pod.Settings{Type: "far", Plugin: ofType}},
		{
			name: "by its plugin in a list", config: `{"cniVersion":"1.0.0","plugins":[{"type":"far"}]}`, driver: "cloud",
			settings: &pod.Settings{Type: "far", Plugin: `{"type":"far"}`},
		},
		{name: "not with a further plugin", config: `{"cniVersion":"1.0.0","plugins":[{"type":"far"},{"type":"tuning"}]}`, err: "plugins: 2 elements: must be one"},
		{
			name: "by an annotation", annotations: map[string]string{"far.example/net": byAnnotation}, driver: "cloud",
			settings: &pod.Settings{Annotations: map[string]string{"far.example/net": byAnnotation}},
		},
		{
			name: "by the annotation of drivers", annotations: map[string]string{v1alpha1.AnnotationDriver: "cloud"}, driver: "cloud",
			settings: &pod.Settings{Annotations: map[string]string{v1alpha1.AnnotationDriver: "cloud"}},
		},
		{name: "without a version", config: `{"type":"far"}`, err: "cniVersion"},
		{name: "a port of the node", config: ofType, asks: `[{"name":"lab","portMappings":[{"hostPort":80,"containerPort":80}]}]`, err: "the pod requests portMappings"},
		{name: "a claim", config: ofType, asks: `[{"name":"lab","ipam-claim-reference":"a"}]`, err: "ipam-claim-reference"},
		{name: "a device", config: ofType, asks: `[{"name":"lab","deviceID":"0000:3b:00.1"}]`, err: "deviceID"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := New(Config{
				Drivers: map[string]string{nad.Type: "native"}, Attaches: func(*corev1.Pod) bool { return true },
				PluginDrivers: map[string]string{"far": "cloud"}, AnnotationDrivers: map[string]string{"far.example/net": "cloud"},
			})
			n.setUnread(nil)
			o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": tc.config}}}
			o.SetNamespace("blue")
			o.SetName("lab")
			o.SetAnnotations(tc.annotations)
			n.observe(o)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Annotations: map[string]string{pod.AnnotationNetworks: cmp.Or(tc.asks, "lab")}}}
			got, err := n.Source(p)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			want := []pod.Interface{{Name: "net1", Network: "blue/lab", Driver: tc.driver, Settings: tc.settings, OwnGateways: true}}
			if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
			p.Annotations[pod.AnnotationNetworks] = `[{"name":"lab","ips":["10.0.0.5"],"mac":"02:00:00:00:00:01","default-route":["10.0.0.1"]}]`
			got, err = n.Source(p)
			if err != nil || !got[0].DefaultRoute || len(got[0].Gateways) != 1 || len(got[0].Addresses) != 1 || got[0].MAC == "" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
