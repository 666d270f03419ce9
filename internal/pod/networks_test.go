package pod

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func attached(networks string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Annotations: map[string]string{AnnotationNetworks: networks}}}
}

func TestNetworks(t *testing.T) {
	a := netip.MustParseAddr
	cases := []struct {
		name, text string
		want       []Selection
		fails      string
	}{
		{name: "nothing", text: " "},
		{name: "an empty list", text: "[]"},
		{
			// Kuryr 7.3: the next network also got the namespace of net-b.
			name: "short", text: "net-a, blue/net-b@fast ,net-a",
			want: []Selection{
				{Namespace: "web", Name: "net-a", Interface: "net1"},
				{Namespace: "blue", Name: "net-b", Interface: "fast", Named: true},
				{Namespace: "web", Name: "net-a", Interface: "net3"},
			},
		},
		{
			name: "a list", text: `[{"name":"net-a"},{"name":"net-b","namespace":"blue","interface":"fast","ips":["10.0.0.7/24","fd00::7"],"mac":"02:AB:00:00:00:01","portMappings":[]},{"name":"net-c","interfaceRequest":"old"}]`,
			want: []Selection{
				{Namespace: "web", Name: "net-a", Interface: "net1"},
				{Namespace: "blue", Name: "net-b", Interface: "fast", Named: true, Addresses: []netip.Addr{a("10.0.0.7"), a("fd00::7")}, MAC: "02:ab:00:00:00:01"},
				{Namespace: "web", Name: "net-c", Interface: "old", Named: true},
			},
		},
		{
			name: "a claim", text: `[{"name":"net-a","ipam-claim-reference":"vm.net-a"}]`,
			want: []Selection{{Namespace: "web", Name: "net-a", Interface: "net1", ClaimReference: "vm.net-a"}},
		},
		{name: "no name", text: "net-a,", fails: `element 1: name: ""`},
		{name: "no namespace", text: "/net-a", fails: "names no namespace"},
		{name: "no interface", text: "net-a@", fails: "names no interface"},
		{name: "a bad name", text: "a/b/c", fails: `name: "b/c"`},
		{name: "a bad namespace", text: `[{"name":"a","namespace":"A.b"}]`, fails: `namespace: "A.b"`},
		{name: "a bad interface", text: "net-a@eth/0", fails: `interface: "eth/0"`},
		{name: "a bad address", text: `[{"name":"a","ips":["10.0.0"]}]`, fails: `ips: "10.0.0"`},
		{name: "a bad MAC", text: `[{"name":"a","mac":"02-00-00-00-00-01"}]`, fails: `mac: "02-00-00-00-00-01"`},
		{name: "no list", text: `[{"name":7}]`, fails: "must be a list"},
		{name: "many", text: strings.Repeat("a,", 40) + "a", fails: "at most"},
		{name: "many in a list", text: "[" + strings.Repeat(`{"name":"a"},`, 32) + `{"name":"a"}]`, fails: "at most 31"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Networks(attached(tc.text))
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || !strings.Contains(err.Error(), AnnotationNetworks) {
					t.Errorf("error %v, want one that says %q", err, tc.fails)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}

func FuzzNetworks(f *testing.F) {
	f.Add("net-a,blue/net-b@fast")
	f.Add(`[{"name":"net-b","namespace":"blue","interface":"fast","ips":["10.0.0.7/24"],"mac":"02:ab:00:00:00:01"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Networks(attached(text))
		if err != nil {
			return
		}
		for _, s := range got {
			if strings.Count(s.Network(), "/") != 1 || !interfaceName.MatchString(s.Interface) {
				t.Fatalf("%q gave %+v", text, s)
			}
		}
	})
}

func choosing(network string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Annotations: map[string]string{AnnotationDefaultNetwork: network}}}
}

func TestChosen(t *testing.T) {
	for _, tc := range []struct {
		text  string
		want  Selection
		fails string
	}{
		{text: " "},
		{text: "net-a", want: Selection{Namespace: "kube-system", Name: "net-a", Interface: "eth0"}},
		{text: "blue/net-a@fast", want: Selection{Namespace: "blue", Name: "net-a", Interface: "eth0"}},
		{text: `[{"name":"net-a","namespace":"blue","ips":["10.0.0.7"]}]`, want: Selection{
			Namespace: "blue", Name: "net-a", Interface: "eth0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")},
		}},
		{text: "net-a,net-b", fails: "must name one"},
		{text: "[]", fails: "must name one"},
		{text: "a/b/c", fails: `name: "b/c"`},
	} {
		got, ok, err := Chosen(choosing(tc.text))
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) || !strings.Contains(err.Error(), AnnotationDefaultNetwork) {
				t.Errorf("%q: error %v", tc.text, err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil || ok != (tc.want.Name != "") {
			t.Errorf("%q: %v, %v, -want +got:\n%s", tc.text, ok, err, diff)
		}
	}
	if kept, ok := Kept([]byte(AnnotationDefaultNetwork), []byte("a")); !ok || kept != "a" {
		t.Errorf("the caches keep %q of the annotation", kept)
	}
	if kept, ok := Kept([]byte("v1.multus-cni.io/other"), []byte("a")); ok {
		t.Errorf("the caches keep %q of an annotation that is not read", kept)
	}
}

func FuzzChosen(f *testing.F) {
	f.Add("blue/net-b@fast")
	f.Add(`[{"name":"net-b","namespace":"blue","ips":["10.0.0.7/24"]}]`)
	f.Fuzz(func(t *testing.T, text string) {
		s, ok, err := Chosen(choosing(text))
		if err != nil && !strings.Contains(err.Error(), AnnotationDefaultNetwork) {
			t.Fatalf("the error does not name the annotation: %v", err)
		}
		if ok && (strings.Count(s.Network(), "/") != 1 || s.Interface != "eth0" || err != nil) {
			t.Fatalf("%q gave %+v, %v", text, s, err)
		}
	})
}
