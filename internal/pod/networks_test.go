package pod

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func attached(networks string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Annotations: map[string]string{AnnotationNetworks: networks}}}
}

func TestNetworks(t *testing.T) {
	a, p := netip.MustParseAddr, netip.MustParsePrefix
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
				{Namespace: "blue", Name: "net-b", Interface: "fast", Named: true, Addresses: []netip.Addr{a("10.0.0.7"), a("fd00::7")}, Prefixes: []netip.Prefix{p("10.0.0.7/24"), p("fd00::7/128")}, MAC: "02:ab:00:00:00:01"},
				{Namespace: "web", Name: "net-c", Interface: "old", Named: true},
			},
		},
		{
			name: "a claim", text: `[{"name":"net-a","ipam-claim-reference":"vm.net-a"}]`,
			want: []Selection{{Namespace: "web", Name: "net-a", Interface: "net1", ClaimReference: "vm.net-a"}},
		},
		{
			name: "everything", text: `[{"name":"net-a","cni-args": {"a": [1, "<b>"]},"portMappings":[{"hostPort":8080,"containerPort":80},{"hostPort":53,"containerPort":53,"protocol":"UDP","hostIP":"192.0.2.1"}],` +
				`"bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":1},"default-route":["10.0.0.1","fd00::1"],"infiniband-guid":"C2:11:22:33:44:55:66:77","deviceID":"0000:3b:02.1","example.com/note":"x"}]`,
			want: []Selection{{
				Namespace: "web", Name: "net-a", Interface: "net1", CNIArgs: `{"a":[1,"<b>"]}`,
				PortMappings: []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"}},
				Bandwidth:    &Bandwidth{IngressRate: 2048, IngressBurst: 1600, EgressRate: 1},
				DefaultRoute: true, Gateways: []netip.Addr{a("10.0.0.1"), a("fd00::1")}, InfinibandGUID: "c2:11:22:33:44:55:66:77", DeviceID: "0000:3b:02.1",
			}},
		},
		{
			name: "empty values", text: `[{"name":"net-a","default-route":null,"cni-args":null,"bandwidth":{},"portMappings":null,"ips":[]},{"name":"net-b","default-route":[]}]`,
			want: []Selection{
				{Namespace: "web", Name: "net-a", Interface: "net1"},
				{Namespace: "web", Name: "net-b", Interface: "net2", DefaultRoute: true},
			},
		},
		{name: "no name", text: "net-a,", fails: `element 1: name: ""`},
		{name: "no namespace", text: "/net-a", fails: "names no namespace"},
		{name: "no interface", text: "net-a@", fails: "names no interface"},
		{name: "a bad name", text: "a/b/c", fails: `name: "b/c"`},
		{name: "a bad namespace", text: `[{"name":"a","namespace":"A.b"}]`, fails: `namespace: "A.b"`},
		{name: "a bad interface", text: "net-a@eth/0", fails: `interface: "eth/0"`},
		{name: "the loopback interface", text: `[{"name":"a","interface":"lo"}]`, fails: `interface: "lo": must be none of lo, all, default`},
		{name: "all interfaces", text: "net-a@all", fails: `interface: "all": must be none of`},
		{name: "a bad address", text: `[{"name":"a","ips":["10.0.0"]}]`, fails: `ips: "10.0.0"`},
		{name: "a bad MAC", text: `[{"name":"a","mac":"02-00-00-00-00-01"}]`, fails: `mac: "02-00-00-00-00-01"`},
		{name: "no list", text: `[{"name":7}]`, fails: "must be a list"},
		{name: "a key of a wrong type", text: `[{"name":"a"},{"name":7}]`, fails: "element 1: name: a JSON number: must be a string"},
		{name: "no object", text: `["a"]`, fails: "element 0: a JSON string: must be an object"},
		{name: "no JSON", text: `[{"name":"a"}`, fails: "must be a list"},
		{name: "a zone", text: `[{"name":"a","ips":["fe80::1%eth0"]}]`, fails: `ips: "fe80::1%eth0"`},
		{name: "many addresses", text: `[{"name":"a","ips":[` + strings.Repeat(`"10.0.0.7",`, 16) + `"10.0.0.7"]}]`, fails: "ips: 17 addresses: at most 16"},
		{name: "addresses beside a claim", text: `[{"name":"a","ips":["10.0.0.7"],"ipam-claim-reference":"vm.net-a"}]`, fails: `ipam-claim-reference: "vm.net-a": must not stand beside ips`},
		{name: "a bad GUID", text: `[{"name":"a","infiniband-guid":"c2:11:22:33:44:55:66"}]`, fails: `infiniband-guid: "c2:11:22:33:44:55:66": must be eight bytes`},
		{name: "cni-args that are no object", text: `[{"name":"a","cni-args":["b"]}]`, fails: "cni-args: \"[\\\"b\\\"]\": must be a JSON object"},
		{name: "long cni-args", text: `[{"name":"a","cni-args":{"b":"` + strings.Repeat("c", maxArgs) + `"}}]`, fails: "cni-args: 8200 bytes: at most 8192"},
		{name: "no host port", text: `[{"name":"a","portMappings":[{"containerPort":80}]}]`, fails: "portMappings[0].hostPort: 0: must be 1 to 65535"},
		{name: "a large port", text: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":65536}]}]`, fails: "element 0: portMappings[1].containerPort: 65536: must be 1 to 65535"},
		{name: "a port as text", text: `[{"name":"a","portMappings":[{"hostPort":"80"}]}]`, fails: "portMappings.hostPort: a JSON string: must be a whole number"},
		{name: "another protocol", text: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]}]`, fails: `portMappings[0].protocol: "icmp": must be tcp, udp or sctp`},
		{name: "a bad host address", text: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"node-1"}]}]`, fails: `portMappings[0].hostIP: "node-1": must be an address of the node`},
		{name: "many ports", text: `[{"name":"a","portMappings":[` + strings.Repeat(`{"hostPort":80,"containerPort":80},`, 64) + `{}]}]`, fails: "portMappings: 65 elements: at most 64"},
		{name: "a negative rate", text: `[{"name":"a","bandwidth":{"ingressRate":-1}}]`, fails: "bandwidth.ingressRate: -1: must be 0 or more bit/s"},
		{name: "a negative burst", text: `[{"name":"a","bandwidth":{"egressRate":1,"egressBurst":-1}}]`, fails: "bandwidth.egressBurst: -1: must be 0 or more bits"},
		{name: "a burst alone", text: `[{"name":"a","bandwidth":{"egressBurst":5}}]`, fails: "bandwidth.egressBurst: 5: must stand beside egressRate"},
		{name: "a fraction of a bit", text: `[{"name":"a","bandwidth":{"egressRate":1.5}}]`, fails: "bandwidth.egressRate: a JSON number 1.5: must be a whole number"},
		{name: "a bad gateway", text: `[{"name":"a","default-route":["0.0.0.0"]}]`, fails: `default-route[0]: "0.0.0.0": must be the address of a gateway`},
		{name: "two gateways", text: `[{"name":"a","default-route":["10.0.0.1","10.0.0.2"]}]`, fails: `default-route[1]: "10.0.0.2": must be the only gateway of its family: 10.0.0.1 is another`},
		{name: "two default routes", text: `[{"name":"a","default-route":[]},{"name":"b"},{"name":"c","default-route":["10.0.0.1"]}]`, fails: "element 2: default-route: element 0 has it as well"},
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
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}

func FuzzNetworks(f *testing.F) {
	f.Add("net-a,blue/net-b@fast")
	f.Add(`[{"name":"net-b","namespace":"blue","interface":"fast","ips":["10.0.0.7/24"],"mac":"02:ab:00:00:00:01"}]`)
	f.Add(`[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80,"protocol":"udp","hostIP":"192.0.2.1"}],"bandwidth":{"egressRate":1,"egressBurst":2}}]`)
	f.Add(`[{"name":"a","default-route":["10.0.0.1"],"infiniband-guid":"c2:11:22:33:44:55:66:77","cni-args":{"b":[]}},{"name":"c","ipam-claim-reference":"vm"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Networks(attached(text))
		if err != nil {
			return
		}
		routes := 0
		for _, s := range got {
			if strings.Count(s.Network(), "/") != 1 || !interfaceName.MatchString(s.Interface) {
				t.Fatalf("%q gave %+v", text, s)
			}
			if s.DefaultRoute {
				routes++
			}
			list := v1alpha1.PluginList{Name: "net", CNIVersion: "1.0.0", Plugins: []string{"{}"}, Args: s.CNIArgs, RuntimeConfig: s.RuntimeConfig()}
			i := v1alpha1.Interface{Name: s.Interface, Network: s.Network(), Driver: "native", MAC: s.MAC, Binding: v1alpha1.Binding{Delegate: &list}}
			for _, g := range s.Gateways {
				i.Gateways = append(i.Gateways, g.String())
			}
			for _, p := range s.Prefixes {
				i.Addresses = append(i.Addresses, p.String())
			}
			if err := i.Validate(); err != nil {
				t.Fatalf("%q gave %+v, which the API does not accept: %v", text, s, err)
			}
			keys := map[string]any{}
			if config := s.RuntimeConfig(); config != "" {
				if err := json.Unmarshal([]byte(config), &keys); err != nil {
					t.Fatal(err)
				}
			}
			if wishes := slices.Sorted(slices.Values(s.Wishes())); !slices.Equal(wishes, slices.Sorted(maps.Keys(keys))) {
				t.Fatalf("%q: wishes %q, arguments %v", text, wishes, keys)
			}
		}
		if routes > 1 {
			t.Fatalf("%q gave %d default routes", text, routes)
		}
	})
}

func TestWishes(t *testing.T) {
	for _, tc := range []struct {
		text   string
		wishes []string
		config string
	}{
		{text: `[{"name":"a","cni-args":{"b":1},"default-route":["10.0.0.1"]}]`},
		{
			text:   `[{"name":"a","infiniband-guid":"C2:11:22:33:44:55:66:77","bandwidth":{"egressRate":1,"egressBurst":2},"portMappings":[{"hostPort":8080,"containerPort":80}],"mac":"02:AB:00:00:00:01","ips":["10.0.0.7/24","fd00::7"]}]`,
			wishes: []string{"ips", "mac", "portMappings", "bandwidth", "infinibandGUID"},
			config: `{"ips":["10.0.0.7/24","fd00::7/128"],"mac":"02:ab:00:00:00:01","portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],` +
				`"bandwidth":{"ingressRate":0,"ingressBurst":0,"egressRate":1,"egressBurst":2},"infinibandGUID":"c2:11:22:33:44:55:66:77"}`,
		},
		{
			text:   `[{"name":"a","portMappings":[{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"::1"}]}]`,
			wishes: []string{"portMappings"}, config: `{"portMappings":[{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"::1"}]}`,
		},
	} {
		got, err := Networks(attached(tc.text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.wishes, got[0].Wishes()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tc.text, diff)
		}
		if diff := cmp.Diff(tc.config, got[0].RuntimeConfig()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tc.text, diff)
		}
	}
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
			Namespace: "blue", Name: "net-a", Interface: "eth0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")},
		}},
		{text: `[{"name":"default","namespace":"ovn-kubernetes","ips":["10.0.0.7/24"],"ipam-claim-reference":"vm1.default"}]`, want: Selection{
			Namespace: "ovn-kubernetes", Name: "default", Interface: "eth0", ClaimReference: "vm1.default",
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/24")},
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
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || err != nil || ok != (tc.want.Name != "") {
			t.Errorf("%q: %v, %v, -want +got:\n%s", tc.text, ok, err, diff)
		}
	}
	if kept, ok := Kept([]byte(AnnotationDefaultNetwork), []byte("a")); !ok || kept != "a" {
		t.Errorf("the caches keep %q of the annotation", kept)
	}
	if kept, ok := Kept([]byte(AnnotationPrimaryClaim), []byte("vm1.default")); !ok || kept != "vm1.default" {
		t.Errorf("the caches keep %q of the annotation with the claim", kept)
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
