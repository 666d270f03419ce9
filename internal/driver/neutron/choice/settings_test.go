package choice

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/pod"
)

func TestSettings(t *testing.T) {
	on, off := true, false
	for _, tc := range []struct {
		name, kind, plugin, kuryr string
		want                      Settings
		err                       string
	}{
		{
			name: "all of ours", kind: Type,
			plugin: `{"cniVersion":"1.0.0","name":"lan","type":"fairlead-neutron","network":"lan","subnets":["a","b"],"securityGroups":["g"],"qosPolicy":"q","project":"p","portSecurity":false,"dnsName":true,"capabilities":{"ips":true}}`,
			want:   Settings{Network: "lan", Subnets: []string{"a", "b"}, Groups: []string{"g"}, QoSPolicy: "q", Project: "p", PortSecurity: &off, DNSName: &on},
		},
		{name: "a null is not set", kind: Type, plugin: `{"network":"lan","subnets":null}`, want: Settings{Network: "lan"}},
		{name: "a key of another plugin", kind: Type, plugin: `{"network_id":"lan"}`, err: `"network_id": is not served for fairlead-neutron: remove it; served are dnsName, network`},
		{name: "another case", kind: Type, plugin: `{"Network":"lan"}`, err: `"Network": is not served`},
		{name: "addresses of a plugin", kind: Type, plugin: `{"network":"lan","ipam":{"type":"host-local"}}`, err: `"ipam": is not served`},
		{name: "no name", kind: Type, plugin: `{"network":""}`, err: "network: \"\": must be a name or an ID of 1 to 255 characters"},
		{name: "a line in a name", kind: Type, plugin: `{"network":"a\nb"}`, err: "network: "},
		{name: "no list", kind: Type, plugin: `{"subnets":"a"}`, err: "subnets: \"a\": must be a list of 1 to 16 names or IDs"},
		{name: "an empty list", kind: Type, plugin: `{"securityGroups":[]}`, err: "securityGroups: []: must be a list"},
		{name: "a flag as a text", kind: Type, plugin: `{"portSecurity":"false"}`, err: "portSecurity: \"false\": must be true or false"},
		{name: "several errors", kind: Type, plugin: `{"a":1,"b":2}`, err: "\"a\": is not served for fairlead-neutron: remove it; served are dnsName, network, portSecurity, project, qosPolicy, securityGroups, subnets\n\"b\""},
		{
			name: "openstack-port-cni", kind: typePort,
			plugin: `{"cniVersion":"0.4.0","type":"openstack-port-cni","socket_file":"unix:/var/snap/microovn/common/run/switch/db.sock","network_id":"n","subnet_id":"s","delegate_plugin":"ovs","bridge":"br-int"}`,
			want:   Settings{Network: "n", Subnets: []string{"s"}},
		},
		{name: "with groups", kind: typePort, plugin: `{"network_id":"n","security_group_ids":["g"]}`, want: Settings{Network: "n", Groups: []string{"g"}}},
		{name: "its bridge", kind: typePort, plugin: `{"network_id":"n","bridge":"br-ex"}`, err: `bridge: "br-ex": must be ["br-int"], or left out`},
		{name: "its VLAN", kind: typePort, plugin: `{"network_id":"n","vlan":7}`, err: `"vlan": is not served for openstack-port-cni`},
		{
			name: "openstack-cni", kind: typeCNI,
			plugin: `{"cniVersion":"0.3.1","type":"openstack-cni","name":"service-ingress","network":"n","project_name":"p","subnet_name":"s","port_name":"x","security_groups":["project_default","default"]}`,
			want:   Settings{Network: "n", Subnets: []string{"s"}, Groups: []string{"project_default", "default"}},
		},
		{name: "Kuryr", kuryr: `{"subnetId":"s"}`, want: Settings{Subnets: []string{"s"}}},
		{name: "Kuryr with its driver", kuryr: `{"subnetId":"s","driverType":"neutron-vif"}`, want: Settings{Subnets: []string{"s"}}},
		{name: "Kuryr in a machine", kuryr: `{"subnetId":"s","driverType":"nested-vlan"}`, want: Settings{Subnets: []string{"s"}}},
		{name: "Kuryr with another driver", kuryr: `{"subnetId":"s","driverType":"nested-dpdk"}`, err: `annotation openstack.org/kuryr-config: driverType: "nested-dpdk": must be ["neutron-vif" "nested-vlan" "nested-macvlan"]`},
		{name: "Kuryr without a subnet", kuryr: `{}`, err: "annotation openstack.org/kuryr-config: subnetId: absent"},
		{name: "no object", kuryr: `[]`, err: "must be a JSON object"},
		{name: "nothing", err: "spec.config: empty: must be a configuration of type fairlead-neutron"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := &pod.Settings{Type: tc.kind, Plugin: tc.plugin}
			if tc.kuryr != "" {
				in.Annotations = map[string]string{AnnotationKuryr: tc.kuryr}
			}
			got, err := parse(in)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for text, want := range map[string]int{"a": 1, "a, b": 2, "": 0, "a,": 0, "a,a": 0, " a ": 1, "a\tb": 0, strings.Repeat("x", 256): 0, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16": 16, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17": 0} {
		got, err := names(text)
		if len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// The settings that a tenant writes are read within bounds, or refused.
func FuzzSettings(f *testing.F) {
	f.Add(Type, `{"network":"lan","subnets":["a"]}`)
	f.Add("", `{"subnetId":"s"}`)
	f.Fuzz(func(t *testing.T, kind, text string) {
		in := &pod.Settings{Type: kind, Plugin: text, Annotations: map[string]string{AnnotationKuryr: text}}
		if _, ok := dialects[kind]; !ok {
			return
		}
		s, err := parse(in)
		if err != nil {
			return
		}
		for _, name := range append(append([]string{s.Network, s.QoSPolicy, s.Project}, s.Subnets...), s.Groups...) {
			if name != "" && !isName(name) || len(s.Subnets) > maxList || len(s.Groups) > maxList {
				t.Errorf("%q is read as %+v", text, s)
			}
		}
	})
}
