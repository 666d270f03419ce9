package npwg

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// attaching returns a set in which Fairlead attaches pods. Namespace "blue" may use some
// parts of the nodes, "red" none. configs are networks by namespace/name.
func attaching(configs map[string]string) *Networks {
	n := New(Config{
		Attaches: func(*corev1.Pod) bool { return true }, Namespace: "fairlead-system", Drivers: map[string]string{nad.Type: "native"},
		Open: []Opening{{
			Namespaces: labels.SelectorFromSet(labels.Set{"team": "blue"}),
			Parts: map[string][]string{
				nad.NeedBridge: {"br-blue"}, nad.NeedParent: {"bond0.*"}, nad.NeedDevice: {"ens1", "intel.com/*"}, nad.NeedPlugin: {"tuning", "vendor", "host-local"},
			},
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		}},
	})
	n.labels = map[string]map[string]string{"blue": {"team": "blue"}, "red": {}}
	n.setUnread(nil)
	for key, config := range configs {
		namespace, name, _ := strings.Cut(key, "/")
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
		o.SetNamespace(namespace)
		o.SetName(name)
		n.observe(o)
	}
	return n
}

func podIn(namespace, networks string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Annotations: map[string]string{pod.AnnotationNetworks: networks}}}
}

// A network in the words of the reference plugins becomes an interface that Fairlead plugs,
// or plugins that the node executes.
func TestAttached(t *testing.T) {
	for _, tc := range []struct {
		name, config, asks string
		want               pod.Interface
	}{
		{
			name:   "macvlan with addresses of a pool, without its default route",
			config: `{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"bond0.7","mtu":9000,"ipam":{"type":"fairlead-ipam","pools":["lan"]}}`,
			asks:   `[{"name":"lan","ips":["10.9.0.7/24"],"mac":"02:00:00:00:00:07"}]`,
			want: pod.Interface{
				Name: "net1", Network: "blue/lan", Driver: "native", Pools: []string{"lan"}, Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.7")}, MAC: "02:00:00:00:00:07",
				MTU: 9000, OwnGateways: true, Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0.7", Mode: "bridge"}},
			},
		},
		{
			name:   "with a claim",
			config: `{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"bond0.7","ipam":{"type":"fairlead-ipam"}}`,
			asks:   `[{"name":"lan","ipam-claim-reference":"vm.lan"}]`,
			want: pod.Interface{
				Name: "net1", Network: "blue/lan", Driver: "native", ClaimReference: "vm.lan", OwnGateways: true,
				Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0.7", Mode: "bridge"}},
			},
		},
		{
			name:   "with the pod's default route",
			config: `{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"bond0.7","ipam":{"type":"fairlead-ipam"}}`,
			asks:   `[{"name":"lan","default-route":["10.9.0.1"]}]`,
			want: pod.Interface{
				Name: "net1", Network: "blue/lan", Driver: "native", Gateways: []string{"10.9.0.1"}, OwnGateways: true, DefaultRoute: true,
				Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0.7", Mode: "bridge"}},
			},
		},
		{
			name:   "no address",
			config: `{"cniVersion":"1.0.0","name":"lan","type":"host-device","device":"ens1"}`,
			asks:   "lan@dev0",
			want: pod.Interface{
				Name: "dev0", Network: "blue/lan", Driver: "fixed", OwnGateways: true,
				Binding: &v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "ens1"}},
			},
		},
		{
			name:   "addresses of the network, and a plugin behind",
			config: `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"macvlan","master":"bond0.7","ipam":{"type":"static","addresses":[{"address":"10.9.0.5/24"}]}},{"type":"tuning","mtu":1400}]}`,
			asks:   `[{"name":"lan","cni-args":{"a":1}}]`,
			want: pod.Interface{
				Name: "net1", Network: "blue/lan", Driver: "fixed", Fixed: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}, OwnGateways: true,
				Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0.7", Mode: "bridge"}},
				Chain:   &v1alpha1.PluginList{Name: "lan", CNIVersion: "1.0.0", Plugins: []string{`{"type":"tuning","mtu":1400}`}, Args: `{"a":1}`},
			},
		},
		{
			name:   "another plugin",
			config: `{"cniVersion":"1.0.0","type":"vendor","capabilities":{"mac":true},"ipam":{"type":"host-local"}}`,
			asks:   `[{"name":"lan","mac":"02:00:00:00:00:07"}]`,
			want: pod.Interface{
				Name: "net1", Network: "blue/lan", Driver: "fixed", OwnGateways: true,
				Binding: &v1alpha1.Binding{Delegate: &v1alpha1.PluginList{
					Name: "lan", CNIVersion: "1.0.0", Plugins: []string{`{"cniVersion":"1.0.0","type":"vendor","capabilities":{"mac":true},"ipam":{"type":"host-local"}}`},
					RuntimeConfig: `{"mac":"02:00:00:00:00:07"}`,
				}},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := attaching(map[string]string{"blue/lan": tc.config})
			got, err := n.Source(podIn("blue", tc.asks))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]pod.Interface{tc.want}, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A network that cannot be attached is an error for its pods, never another interface than
// the pod asked for.
func TestNotAttached(t *testing.T) {
	const lan = `{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"bond0.7","ipam":{"type":"fairlead-ipam"}}`
	for _, tc := range []struct {
		name, namespace, config, asks, fails string
	}{
		{"an option that is not served", "blue", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-blue","ipMasq":true}`, "lan", "ipMasq"},
		{"a configuration on the nodes", "blue", "", "lan", "spec.config: empty"},
		{"a capability that no plugin has", "blue", lan, `[{"name":"lan","portMappings":[{"hostPort":80,"containerPort":80}]}]`, "requests portMappings"},
		{"addresses of a network without any", "blue", `{"cniVersion":"1.0.0","type":"host-device","device":"ens1"}`, `[{"name":"lan","ips":["10.9.0.7"]}]`, "requests ips"},
		{
			"an address for all interfaces", "blue", `{"cniVersion":"1.0.0","type":"macvlan","master":"bond0.7","ipam":{"type":"whereabouts","range":"10.9.0.0/24","addresses":[{"address":"10.9.0.5/24"}]}}`, "lan",
			"ipam.addresses: 10.9.0.5/24",
		},
		{"a claim without addresses", "blue", `{"cniVersion":"1.0.0","type":"host-device","device":"ens1"}`, `[{"name":"lan","ipam-claim-reference":"vm"}]`, "ipam-claim-reference"},
		{"a parent that is not open", "red", lan, "lan", `namespace red may not use parent "bond0.7"`},
		{"another parent", "blue", strings.ReplaceAll(lan, "bond0.7", "bond1"), "lan", `may not use parent "bond1"`},
		{"a bridge", "blue", `{"cniVersion":"1.0.0","type":"bridge","bridge":"fairlead0"}`, "lan", `may not use bridge "fairlead0"`},
		{"a device", "blue", `{"cniVersion":"1.0.0","type":"host-device","device":"eth0"}`, "lan", `may not use device "eth0"`},
		{"a plugin", "blue", `{"cniVersion":"1.0.0","type":"other"}`, "lan", `may not use plugin "other"`},
		{
			"a plugin behind", "blue", `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"macvlan","master":"bond0.7"},{"type":"firewall"}]}`, "lan",
			`may not use plugin "firewall"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := attaching(map[string]string{tc.namespace + "/lan": tc.config})
			got, err := n.Source(podIn(tc.namespace, tc.asks))
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("interfaces %+v, error %v, want one that says %q", got, err, tc.fails)
			}
		})
	}
	// The operator's own networks may use everything.
	if _, err := attaching(map[string]string{"fairlead-system/lan": lan}).Source(podIn("red", "fairlead-system/lan")); err != nil {
		t.Error(err)
	}
}

// With isolation a pod reaches the networks of its own namespace, of the operator's, and of
// those that are shared.
func TestIsolated(t *testing.T) {
	const lan = `{"cniVersion":"1.0.0","type":"host-device","device":"ens1"}`
	n := attaching(map[string]string{"blue/lan": lan, "fairlead-system/lan": lan})
	n.labels["red"] = map[string]string{"team": "blue"}
	n.cfg.Isolated = true
	for _, tc := range []struct {
		namespace, asks string
		ok              bool
	}{
		{"blue", "lan", true},
		{"red", "fairlead-system/lan", true},
		{"red", "blue/lan", false},
	} {
		_, err := n.Source(podIn(tc.namespace, tc.asks))
		if (err == nil) != tc.ok || err != nil && (!errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "networks.isolated")) {
			t.Errorf("a pod of %s on %s: %v", tc.namespace, tc.asks, err)
		}
	}
	n.cfg.Shared = []string{"blue"}
	if _, err := n.Source(podIn("red", "blue/lan")); err != nil {
		t.Error(err)
	}
}

// The network that a pod chooses for its default interface is made by Fairlead, with the
// gateways of its pools.
func TestChosenIsAttached(t *testing.T) {
	n := attaching(map[string]string{"blue/lan": `{"cniVersion":"1.0.0","name":"lan","type":"macvlan","master":"bond0.7","ipam":{"type":"fairlead-ipam"}}`})
	got, err := n.Chosen(podIn("blue", ""), pod.Selection{Namespace: "blue", Name: "lan", Interface: "eth0"})
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if i := got[0]; !i.Default || i.AddressOnly || i.OwnGateways || i.Binding == nil || i.Binding.Macvlan == nil || i.Name != "eth0" {
		t.Errorf("%+v", i)
	}
}

// A network with the annotation of a resource gives a device that the kubelet chooses, or
// a device in the annotation of the pod, if the operator opened the resource.
func TestDevicesOfAResource(t *testing.T) {
	n := attaching(map[string]string{"blue/plain": `{"cniVersion":"1.0.0","type":"host-device","device":"ens1"}`})
	for _, namespace := range []string{"blue", "red"} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": `{"cniVersion":"1.0.0","type":"host-device"}`}}}
		o.SetNamespace(namespace)
		o.SetName("vf")
		o.SetAnnotations(map[string]string{nad.AnnotationResource: "intel.com/a"})
		n.observe(o)
	}
	got, err := n.Source(podIn("blue", `[{"name":"vf"},{"name":"vf","deviceID":"0000:3b:02.1"},{"name":"vf"}]`))
	if err != nil {
		t.Fatal(err)
	}
	var devices []v1alpha1.DeviceResource
	for _, i := range got {
		devices = append(devices, *i.Binding.HostDevice.Resource)
	}
	want := []v1alpha1.DeviceResource{{Name: "intel.com/a"}, {Name: "intel.com/a", Device: "0000:3b:02.1"}, {Name: "intel.com/a"}}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for networks, says := range map[string]string{
		"red/vf": `may not use device "intel.com/a"`,
		`[{"name":"plain","deviceID":"0000:3b:02.1"}]`: "deviceID: \"0000:3b:02.1\": the network has no devices",
		`[{"name":"vf","deviceID":"../a"}]`:            `deviceID: "../a": must be the ID of a device`,
	} {
		if _, err := n.Source(podIn("blue", networks)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", networks, err)
		}
	}
}

// The network for devices that a pod requests is that of its namespace, otherwise the
// operator's.
func TestNetworkWithResource(t *testing.T) {
	n := attaching(nil)
	for key, resource := range map[string]string{
		"blue/b": "intel.com/a", "blue/a": "intel.com/a", "fairlead-system/a": "intel.com/a", "fairlead-system/c": "intel.com/c", "red/d": "intel.com/d",
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": `{"cniVersion":"1.0.0","type":"host-device"}`}}}
		namespace, name, _ := strings.Cut(key, "/")
		o.SetNamespace(namespace)
		o.SetName(name)
		o.SetAnnotations(map[string]string{nad.AnnotationResource: resource})
		n.observe(o)
	}
	for resource, want := range map[string]string{"intel.com/a": "blue/a", "intel.com/c": "fairlead-system/c", "intel.com/d": "/"} {
		s, ok, err := n.withResource(podIn("blue", ""), resource)
		if s.Network() != want || ok != (want != "/") || err != nil {
			t.Errorf("%s: %s, %v, error %v", resource, s.Network(), ok, err)
		}
		if !ok {
			continue
		}
		if known, err := n.get(keyOfNetwork(s)); err != nil || resourceOf(known) != resource {
			t.Errorf("%s has devices of %q, error %v", want, resourceOf(known), err)
		}
	}
	n.setUnread(errors.New("not read"))
	if _, _, err := n.withResource(podIn("blue", ""), "intel.com/a"); !errors.Is(err, fault.ErrUnavailable) {
		t.Error(err)
	}
}
