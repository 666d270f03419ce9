package kuryr

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

const (
	portID    = "5d8a1f6e-0000-4000-8000-000000000001"
	networkID = "0c1f7a10-0000-4000-8000-000000000002"
	subnetID  = "0c1f7a10-0000-4000-8000-000000000003"
)

// vif is an interface as Kuryr writes it.
func vif(kind, id, address string) string {
	return fmt.Sprintf(`{"default": true, "vif": {"versioned_object.name": %q, "versioned_object.namespace": "os_vif", "versioned_object.version": "1.0",
		"versioned_object.data": {"id": %q, "address": "fa:16:3e:00:00:01", "vlan_id": 101, "network": {"versioned_object.data": {"id": %q, "mtu": 1450,
		"subnets": {"versioned_object.data": {"objects": [{"versioned_object.data": {"cidr": "10.8.0.0/24",
		"ips": {"versioned_object.data": {"objects": [{"versioned_object.data": {"address": %q}}]}}}}]}}}}}}}`, kind, id, networkID, address)
}

// port is a KuryrPort in shop with a status.
func port(name, uid, status string) Object {
	o := Object{Namespace: "shop", Name: name}
	raw := fmt.Sprintf(`{"spec": {"podUid": %q, "podNodeName": "node-1"}, "status": %s}`, uid, status)
	raw = strings.ReplaceAll(raw, `\x1b`, `\u001b`) // JSON has no other escape for it
	if err := json.Unmarshal([]byte(raw), &o.Content); err != nil {
		panic(err)
	}
	return o
}

func podNamed(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// Each port has its outcome. A broken KuryrPort changes nothing for the others. The namespace,
// the name and the UID of the pod count together: a KuryrPort with the UID of another pod is
// that of no pod.
func TestPorts(t *testing.T) {
	vifs := func(kind, id, address string) string { return `{"vifs": {"eth0": ` + vif(kind, id, address) + `}}` }
	for name, test := range map[string]struct {
		uid, status string
		want        Outcome
		reason      string
	}{
		"open vswitch":       {"uid-cart", vifs("VIFOpenVSwitch", portID, "10.8.0.5"), Adoptable, "makes a new one"},
		"trunk":              {"uid-cart", vifs("VIFVlanNested", portID, "10.8.0.5"), Adoptable, "subports"},
		"vhost-user":         {"uid-cart", vifs("VIFVHostUser", portID, "10.8.0.5"), New, "sockets"},
		"macvlan":            {"uid-cart", vifs("VIFMacvlanNested", portID, "10.8.0.5"), Adoptable, "address pairs"},
		"unknown kind":       {"uid-cart", vifs("VIF\x1b[31m", portID, "10.8.0.5"), New, `"VIF\x1b[31m" is no kind`},
		"no address":         {"uid-cart", vifs("VIFOpenVSwitch", portID, "no"), New, "no address"},
		"gone":               {"uid-other", vifs("VIFOpenVSwitch", portID, "10.8.0.5"), Left, "delete the port"},
		"gone without port":  {"uid-other", `{"vifs": {}}`, Left, "its pod is gone"},
		"no port yet":        {"uid-cart", `{"vifs": {}}`, New, "no port yet"},
		"no status":          {"uid-cart", `{}`, New, "no port yet"},
		"vifs are a list":    {"uid-cart", `{"vifs": []}`, Unreadable, "no object"},
		"an ID of no port":   {"uid-cart", vifs("VIFOpenVSwitch", "../ports", "10.8.0.5"), Unreadable, `"../ports": must be a UUID`},
		"an entry is a text": {"uid-cart", `{"vifs": {"eth0": "x"}}`, Unreadable, "must be a UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{
				Pods:  []corev1.Pod{podNamed("cart"), podNamed("other"), podNamed("fine")},
				Ports: []Object{port("cart", test.uid, test.status), port("fine", "uid-fine", vifs("VIFOpenVSwitch", portID, "10.8.0.6"))},
			}
			p, err := Make(s)
			if err != nil || len(p.Ports) != 2 {
				t.Fatalf("%d ports, %v", len(p.Ports), err)
			}
			if got := p.Ports[0]; got.Outcome != test.want || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("%s: %s, want %s: %s", got.Outcome, got.Reason, test.want, test.reason)
			}
			want := Port{
				Pod: "shop/fine", Interface: "eth0", ID: portID, Addresses: []string{"10.8.0.6"}, MAC: "fa:16:3e:00:00:01", Kind: "VIFOpenVSwitch", Node: "node-1",
				Network: networkID, Subnets: []string{"10.8.0.0/24"}, VLAN: 101, Outcome: Adoptable, Reason: kinds["VIFOpenVSwitch"].reason,
			}
			if diff := cmp.Diff(want, p.Ports[1]); diff != "" {
				t.Errorf("the other port (-want +got):\n%s", diff)
			}
		})
	}
}

// A static pod's KuryrPort has the UID of the manifest.
func TestPortOfAStaticPod(t *testing.T) {
	p := podNamed("proxy")
	p.Annotations = map[string]string{"kubernetes.io/config.mirror": "manifest"}
	plan, err := Make(State{Pods: []corev1.Pod{p}, Ports: []Object{port("proxy", "manifest", `{"vifs": {"eth0": `+vif("VIFOpenVSwitch", portID, "10.8.0.5")+`}}`)}})
	if err != nil || plan.Ports[0].Outcome != Adoptable {
		t.Errorf("%+v, %v", plan.Ports, err)
	}
}

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte("# a comment\n[kubernetes]\nenabled_handlers = vif,\n  kuryrport\npod_vif_driver=nested-vlan\nno option\n; x = y\n[neutron_defaults]\nresource_tags: east, west\npod_security_groups = ['a', \"b\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"kubernetes.enabled_handlers": "vif, kuryrport", "kubernetes.pod_vif_driver": "nested-vlan",
		"neutron_defaults.resource_tags": "east, west", "neutron_defaults.pod_security_groups": `['a', "b"]`,
	}
	if diff := cmp.Diff(want, c.Options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if got := c.list("neutron_defaults.pod_security_groups"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("a list is %q", got)
	}
	for name, raw := range map[string]string{"empty": "", "no option": "{}", "too large": strings.Repeat("a = b\n", maxConfig/6+1)} {
		if c, err := ParseConfig([]byte(raw)); err == nil {
			t.Errorf("%s: %d options", name, len(c.Options))
		}
	}
}

// The controller accepts the printed configuration.
func TestConfigurationIsValid(t *testing.T) {
	conf, err := ParseConfig([]byte("[neutron_defaults]\nproject = b1946ac92492d2347c6235b4d2611184\npod_subnet = " + subnetID + "\npod_security_groups = g1,g2\nresource_tags = East\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]State{
		"bare metal": {Config: conf, Ports: []Object{port("cart", "uid-cart", `{"vifs": {"eth0": `+vif("VIFOpenVSwitch", portID, "10.8.0.5")+`}}`)}, Pods: []corev1.Pod{podNamed("cart")}},
		"nothing":    {},
		"machines, networks of namespaces": {
			Config: &Config{Options: map[string]string{"kubernetes.pod_vif_driver": "nested-vlan", "kubernetes.pod_subnets_driver": "namespace", "namespace_subnet.pod_router": "r1"}},
			Ports:  []Object{port("cart", "uid-cart", `{"vifs": {"eth0": `+vif("VIFVlanNested", portID, "10.8.0.5")+`}}`)}, Pods: []corev1.Pod{podNamed("cart")},
			Networks: []Object{{Namespace: "shop", Name: "shop", Content: map[string]any{"status": map[string]any{"netId": networkID}}}},
		},
		"hostile": {
			Config:      &Config{Options: map[string]string{"neutron_defaults.resource_tags": "*", "neutron_defaults.project": "a b"}},
			Definitions: []Definition{{Namespace: "shop", Name: "x", Kuryr: `{"subnetId": "*"}`}, {Namespace: "shop", Name: "y", Kuryr: `{"subnetId": "` + subnetID + `"}`}},
			Projects:    map[string]string{"shop": "*", "pay": "p1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Make(s)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "controller.yaml")
			if err := os.WriteFile(file, []byte(p.Configuration), 0o600); err != nil {
				t.Fatal(err)
			}
			c := config.DefaultController()
			if err := config.Load(file, &c); err != nil {
				t.Fatal(err)
			}
			if err := c.Validate([]string{"native", "neutron"}); err != nil {
				t.Errorf("%v\n%s", err, p.Configuration)
			}
			if strings.Contains(p.Configuration, `"*"`) || strings.Contains(p.Configuration, "'*'") {
				t.Errorf("it opens everything:\n%s", p.Configuration)
			}
		})
	}
}

// The page of the migration describes every option, and no other.
func TestPageHasEveryOption(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operator/migrate-kuryr.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{"kubernetes.enabled_handlers": true}
	for name := range options {
		described[name] = true
	}
	shown := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`[") {
			continue
		}
		group, names, _ := strings.Cut(strings.TrimSpace(cells[1]), "]`")
		for name := range strings.SplitSeq(names, "`") {
			if name = strings.Trim(name, " ,"); name != "" {
				shown[strings.TrimPrefix(group, "`[")+"."+name] = true
			}
		}
	}
	if diff := cmp.Diff(described, shown); diff != "" {
		t.Errorf("options of the source and of the page differ (-source +page):\n%s", diff)
	}
}

// No object of Kuryr ends the plan, whatever it has.
func FuzzPlan(f *testing.F) {
	f.Add(`{"spec": {"podUid": "uid-cart"}, "status": {"vifs": {"eth0": `+vif("VIFOpenVSwitch", portID, "10.8.0.5")+`}}}`, `{"subnetId": "x"}`, "[a]\nb = c\n d")
	f.Add(`{"status": {"vifs": [], "loadbalancer": 7}}`, `[]`, "[\n=")
	f.Fuzz(func(t *testing.T, object, definition, conf string) {
		var o Object
		_ = json.Unmarshal([]byte(object), &o.Content)
		s := State{
			Ports: []Object{o}, Networks: []Object{o}, LoadBalancers: []Object{o}, Policies: []Object{o}, Pods: []corev1.Pod{podNamed("cart")},
			Definitions: []Definition{{Namespace: "shop", Kuryr: definition}}, Projects: map[string]string{"shop": definition},
			Cloud: &Cloud{Ports: []cloud.Port{{ID: portID, Name: conf}}},
		}
		s.Config, _ = ParseConfig([]byte(conf))
		p, err := Make(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range p.Ports {
			if port.ID != "" && !uuid.MatchString(port.ID) {
				t.Errorf("port %q", port.ID)
			}
		}
	})
}
