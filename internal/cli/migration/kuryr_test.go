package migration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate/kuryr"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/golden"
)

// content parses an object of Kuryr.
func content(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// kuryrPort returns the KuryrPort of a pod in shop.
func kuryrPort(t *testing.T, pod, kind string, n int) kuryr.Object {
	t.Helper()
	return kuryr.Object{Namespace: "shop", Name: pod, Content: content(t, fmt.Sprintf(`{"spec": {"podUid": "uid-%s", "podNodeName": "node-1"}, "status": {"vifs": {"eth0": {"default": true, "vif": {
		"versioned_object.name": %q, "versioned_object.data": {"id": "5d8a1f6e-0000-4000-8000-%012d", "address": "fa:16:3e:00:00:%02x", "vlan_id": %d, "network": {
		"versioned_object.data": {"id": "0c1f7a10-0000-4000-8000-000000000002", "subnets": {"versioned_object.data": {"objects": [{"versioned_object.data": {
		"cidr": "10.8.0.0/24", "ips": {"versioned_object.data": {"objects": [{"versioned_object.data": {"address": "10.8.0.%d"}}]}}}}]}}}}}}}}}}`,
		pod, kind, n, n, map[bool]int{true: 100 + n}[kind == "VIFVlanNested"], n))}
}

// underKuryr is a cluster of Kuryr with ports of Open vSwitch. trouble adds everything else.
func underKuryr(t *testing.T, trouble bool) kuryr.State {
	t.Helper()
	conf := "[kubernetes]\nenabled_handlers = vif,kuryrport\nmulti_vif_drivers = npwg_multiple_interfaces\n[neutron_defaults]\nproject = b1946ac92492d2347c6235b4d2611184\n" +
		"pod_subnet = 0c1f7a10-0000-4000-8000-000000000003\nresource_tags = east\n"
	s := kuryr.State{
		Own:         "fairlead-system",
		Ports:       []kuryr.Object{kuryrPort(t, "cart-0", "VIFOpenVSwitch", 1), kuryrPort(t, "cart-1", "VIFOpenVSwitch", 2)},
		Definitions: []kuryr.Definition{{Namespace: "shop", Name: "storage", Kuryr: `{"subnetId": "0c1f7a10-0000-4000-8000-000000000004", "driverType": "neutron-vif"}`}},
		Pods:        []corev1.Pod{kuryrPod("cart-0"), kuryrPod("cart-1"), kuryrPod("web-0")},
	}
	if trouble {
		conf += "[kubernetes]\nenabled_handlers = vif,kuryrport,service,endpoints,kuryrloadbalancer,namespace,kuryrnetwork,policy\npod_vif_driver = nested-vlan\nvif_pool_driver = nested\n" +
			"pod_subnets_driver = namespace\n[vif_pool]\nports_pool_min = 5\n[namespace_subnet]\npod_router = 0c1f7a10-0000-4000-8000-000000000009\n"
		s.Ports = append(s.Ports, kuryrPort(t, "web-0", "VIFVlanNested", 7), kuryrPort(t, "gone-0", "VIFVlanNested", 8),
			kuryr.Object{Namespace: "shop", Name: "broken-0", Content: content(t, `{"spec": {"podUid": 7}, "status": {"vifs": {"eth0": {"vif": "\u001b[31m"}}}}`)})
		s.Networks = []kuryr.Object{{Namespace: "shop", Name: "shop", Content: content(t, `{"status": {"netId": "0c1f7a10-0000-4000-8000-000000000005", "subnetId": "0c1f7a10-0000-4000-8000-000000000006"}}`)}}
		s.LoadBalancers = []kuryr.Object{
			{Namespace: "shop", Name: "cart", Content: content(t, `{"spec": {"type": "ClusterIP"}, "status": {"loadbalancer": {"id": "0c1f7a10-0000-4000-8000-000000000007"}}}`)},
			{Namespace: "shop", Name: "front", Content: content(t, `{"spec": {"type": "LoadBalancer"}, "status": "none"}`)},
		}
		s.Policies = []kuryr.Object{{Namespace: "shop", Name: "np-deny", Content: content(t, `{"status": {"securityGroupId": "0c1f7a10-0000-4000-8000-000000000008"}}`)}}
		s.Definitions = append(s.Definitions, kuryr.Definition{Namespace: "pay", Name: "fast", Kuryr: `{"subnetId": "0c1f7a10-0000-4000-8000-000000000004", "driverType": "sriov"}`})
		s.Cloud = inOpenStack()
		s.Projects = map[string]string{"pay": "8d777f385d3dfec8815d20f7496026dc", "evil": "*"}
	}
	var err error
	if s.Config, err = kuryr.ParseConfig([]byte(conf)); err != nil {
		t.Fatal(err)
	}
	s.Config.Source = "ConfigMap kube-system/kuryr-config"
	return s
}

// inOpenStack has the port of cart-0 with another address, not that of cart-1, and things that
// are not Kuryr's.
func inOpenStack() *kuryr.Cloud {
	port := func(n int, owner string) cloud.Port {
		return cloud.Port{
			ID: fmt.Sprintf("5d8a1f6e-0000-4000-8000-%012d", n), MAC: fmt.Sprintf("fa:16:3e:00:00:%02x", n), NetworkID: "0c1f7a10-0000-4000-8000-000000000002", Status: "ACTIVE",
			DeviceOwner: owner, Addresses: []cloud.Address{{Addr: netip.AddrFrom4([4]byte{10, 8, 0, byte(n)})}},
		}
	}
	other := port(1, "compute:kuryr")
	other.Addresses[0].Addr = netip.MustParseAddr("10.8.0.99")
	vm := port(22, "compute:nova")
	vm.Name, vm.NetworkID = "builder\x1b[31m", "0c1f7a10-0000-4000-8000-000000000005"
	return &kuryr.Cloud{
		Project: "b1946ac92492d2347c6235b4d2611184",
		Ports:   []cloud.Port{other, port(7, "trunk:subport"), port(8, "trunk:subport"), port(20, "trunk:subport"), port(21, "compute:kuryr"), vm},
		Trunks: []cloud.Trunk{{
			ID: "0c1f7a10-0000-4000-8000-000000000030", Name: "node-1", Parent: "0c1f7a10-0000-4000-8000-000000000031",
			Subports: []cloud.Subport{{Port: "5d8a1f6e-0000-4000-8000-000000000007", VLAN: 107}, {Port: "5d8a1f6e-0000-4000-8000-000000000008", VLAN: 108}, {Port: "5d8a1f6e-0000-4000-8000-000000000020", VLAN: 20}},
		}},
		Networks: []cloud.Network{
			{ID: "0c1f7a10-0000-4000-8000-000000000005", Name: "ns/shop-net", Subnets: []string{"0c1f7a10-0000-4000-8000-000000000006"}},
			{ID: "0c1f7a10-0000-4000-8000-000000000032", Name: "ns/old-net"},
		},
	}
}

func kuryrPod(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// kuryrOutputs returns the outputs of `migrate kuryr`, by name of the golden file.
func kuryrOutputs(t *testing.T) map[string]string {
	t.Helper()
	noConfig := underKuryr(t, false)
	noConfig.Config = nil
	out := map[string]string{}
	for name, s := range map[string]kuryr.State{"kuryr": underKuryr(t, false), "kuryr-trouble": underKuryr(t, true), "kuryr-noconfig": noConfig} {
		plan, err := kuryr.Make(s)
		if err != nil {
			t.Fatal(err)
		}
		view := buildKuryr(s, plan)
		out[name+".txt"] = kuryrText(view)
		var b bytes.Buffer
		format := output.JSONFormat
		if err := format.Write(&b, view, nil); err != nil {
			t.Fatal(err)
		}
		out[name+".json"] = b.String()
	}
	delete(out, "kuryr-noconfig.json")
	return out
}

func TestKuryrOutputs(t *testing.T) {
	for name, got := range kuryrOutputs(t) {
		t.Run(name, func(t *testing.T) { golden.Equal(t, name, got) })
	}
}

// A cluster may have more ports than a person reads.
func TestKuryrTextIsBounded(t *testing.T) {
	s := underKuryr(t, false)
	for i := range 200 {
		s.Ports = append(s.Ports, kuryrPort(t, fmt.Sprint("gone-", i), "VIFOpenVSwitch", 9))
	}
	plan, err := kuryr.Make(s)
	if err != nil {
		t.Fatal(err)
	}
	text := kuryrText(buildKuryr(s, plan))
	if !regexp.MustCompile(`(?m)^and 150 more: see -o json$`).MatchString(text) || len(regexp.MustCompile(`(?m)^shop/gone-`).FindAllString(text, -1)) != maxShown {
		t.Errorf("the text is:\n%s", text)
	}
}

// TestKuryrPageShowsRealOutput compares the example on the page of the migration with the
// command's output.
func TestKuryrPageShowsRealOutput(t *testing.T) {
	const path = "../../../docs/operator/migrate-kuryr.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, e := range regexp.MustCompile("(?ms)^```console\n\\$ ([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		shown[e[1]] = e[2]
	}
	want := map[string]string{"fairlead migrate kuryr --dry-run --cloud east": kuryrOutputs(t)["kuryr-trouble.txt"]}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("%s (-printed +shown):\n%s", path, diff)
	}
}
