package kuryr

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// portOf returns the port of the KuryrPorts of vif, as OpenStack has it.
func portOf(change func(*cloud.Port)) cloud.Port {
	p := cloud.Port{
		ID: portID, NetworkID: networkID, MAC: "FA:16:3E:00:00:01", Status: "ACTIVE", DeviceOwner: ownerKuryr,
		Addresses: []cloud.Address{{Addr: netip.MustParseAddr("10.8.0.5")}},
	}
	change(&p)
	return p
}

// A port that OpenStack has otherwise than its KuryrPort, or not at all, cannot be kept.
func TestPortsInOpenStack(t *testing.T) {
	same := func(*cloud.Port) {}
	on := func(vlan int) []cloud.Trunk {
		return []cloud.Trunk{{ID: "t1", Subports: []cloud.Subport{{Port: portID, VLAN: vlan}}}}
	}
	machine := func(pairs ...cloud.Pair) cloud.Port { return cloud.Port{ID: "machine", Pairs: pairs} }
	pair := cloud.Pair{Prefix: netip.MustParsePrefix("10.8.0.5/32"), MAC: "fa:16:3e:00:00:01"}
	for name, test := range map[string]struct {
		kind, uid string
		cloud     Cloud
		want      Outcome
		has, why  string
	}{
		"the same":          {"VIFOpenVSwitch", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.Host = "node-1" })}}, Adoptable, "ACTIVE, bound on node-1", "serves such ports"},
		"none":              {"VIFOpenVSwitch", "uid-cart", Cloud{Project: "east"}, Missing, "", "does not show it to project east"},
		"none, and no pod":  {"VIFOpenVSwitch", "uid-other", Cloud{}, Left, "", "so is its port"},
		"no pod":            {"VIFOpenVSwitch", "uid-other", Cloud{Ports: []cloud.Port{portOf(same)}}, Left, "ACTIVE", "delete the port"},
		"another host":      {"VIFOpenVSwitch", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.Host = "node-2" })}}, Differs, "ACTIVE, bound on node-2", "in OpenStack: bound on node-2"},
		"another address":   {"VIFOpenVSwitch", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.Addresses = nil })}}, Differs, "ACTIVE", "in OpenStack: address "},
		"another MAC":       {"VIFOpenVSwitch", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.MAC = "fa:16:3e:00:00:02" })}}, Differs, "ACTIVE", "MAC fa:16:3e:00:00:02"},
		"another network":   {"VIFOpenVSwitch", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.NetworkID = "n2" })}}, Differs, "ACTIVE", "network n2"},
		"subport":           {"VIFVlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same)}, Trunks: on(101)}, Adoptable, "ACTIVE, VLAN 101 of trunk t1", "subports"},
		"another VLAN":      {"VIFVlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same)}, Trunks: on(102)}, Differs, "ACTIVE, VLAN 102 of trunk t1", "in OpenStack: VLAN 102"},
		"no subport":        {"VIFVlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same)}}, Differs, "ACTIVE", "no subport of a trunk"},
		"pair":              {"VIFMacvlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same), machine(pair)}}, Adoptable, "ACTIVE", "address pairs"},
		"pair without MAC":  {"VIFMacvlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same), machine(cloud.Pair{Prefix: pair.Prefix})}}, Adoptable, "ACTIVE", "address pairs"},
		"pair of another":   {"VIFMacvlanNested", "uid-cart", Cloud{Ports: []cloud.Port{portOf(same), machine(cloud.Pair{Prefix: pair.Prefix, MAC: "fa:16:3e:00:00:02"})}}, Differs, "ACTIVE", "no allowed address pair"},
		"a kind of no more": {"VIFVHostUser", "uid-cart", Cloud{Ports: []cloud.Port{portOf(func(p *cloud.Port) { p.MAC = "" })}}, New, "ACTIVE", "sockets"},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Pods: []corev1.Pod{podNamed("cart")}, Ports: []Object{port("cart", test.uid, `{"vifs": {"eth0": `+vif(test.kind, portID, "10.8.0.5")+`}}`)}, Cloud: &test.cloud}
			p, err := Make(s)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Ports[0]; got.Outcome != test.want || got.Cloud != test.has || !strings.Contains(got.Reason, test.why) {
				t.Errorf("%s, in OpenStack %q: %s; want %s, %q: %s", got.Outcome, got.Cloud, got.Reason, test.want, test.has, test.why)
			}
			if p.Complete() != (test.want == Adoptable) {
				t.Errorf("complete is %t", p.Complete())
			}
		})
	}
}

// The plan names everything that no object of Kuryr names, if it is Kuryr's by a mark or a name or
// stands in the way. Other things of the project are left out.
func TestForeign(t *testing.T) {
	network := Object{Namespace: "shop", Name: "shop"}
	if err := json.Unmarshal([]byte(`{"status": {"netId": "n1", "subnetId": "s1"}}`), &network.Content); err != nil {
		t.Fatal(err)
	}
	s := State{
		Config: &Config{Options: map[string]string{"neutron_defaults.resource_tags": "east"}}, Networks: []Object{network},
		Pods: []corev1.Pod{podNamed("cart")}, Ports: []Object{port("cart", "uid-cart", `{"vifs": {"eth0": `+vif("VIFVlanNested", portID, "10.8.0.5")+`}}`)},
		Cloud: &Cloud{
			Project: "east",
			Ports: []cloud.Port{
				portOf(func(*cloud.Port) {}),
				{ID: "pool", Name: "available-port"},
				{ID: "lost", DeviceOwner: ownerKuryr, NetworkID: "n9"},
				{ID: "tagged", Tags: []string{"east"}, NetworkID: "n9"},
				{ID: "vm", DeviceOwner: "compute:nova", NetworkID: "n1"},
				{ID: "router", DeviceOwner: "network:router_interface", NetworkID: "n1"},
				{ID: "elsewhere", NetworkID: "n9"},
			},
			Trunks: []cloud.Trunk{
				{ID: "t1", Name: "a", Parent: "p1", Subports: []cloud.Subport{{Port: portID, VLAN: 101}, {Port: "pool", VLAN: 5}}}, {ID: "t2", Parent: "p2"},
			},
			Networks: []cloud.Network{{ID: "n1", Name: "ns/shop-net"}, {ID: "n2", Name: "ns/old-net"}, {ID: "n3", Name: "net"}, {ID: "n4", Name: "ns/"}},
		},
	}
	p, err := Make(s)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range p.Foreign {
		got = append(got, f.Kind+" "+f.ID+" at "+f.Where)
	}
	want := []string{"Network n2 at namespace old", "Port vm at network n1", "Port lost at network n9", "Port tagged at network n9", "Subport pool at VLAN 5 of trunk t1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("foreign (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Trunk{{ID: "t1", Name: "a", Parent: "p1", Nodes: []string{"node-1"}, Subports: 2, Named: 1}}, p.Trunks); diff != "" {
		t.Errorf("trunks (-want +got):\n%s", diff)
	}
	if got := p.Things[0].Text; !strings.Contains(got, "no such subnet") {
		t.Errorf("the network of the namespace: %s", got)
	}
	s.Cloud.Networks = nil
	if p, err = Make(s); err != nil || !strings.Contains(p.Things[0].Text, "no such network in project east") {
		t.Errorf("the network of the namespace: %+v, %v", p.Things, err)
	}
}
