package answer

import (
	"encoding/json"
	"errors"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

// TestCapabilitiesInEveryCase covers the keys of containerd, whose structs have no JSON
// tags, and those of the conventions, CRI-O and Multus, which begin in lower case.
func TestCapabilitiesInEveryCase(t *testing.T) {
	for _, raw := range []string{
		`{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":"::"}],
		  "bandwidth":{"IngressRate":1000,"IngressBurst":4294967295,"EgressRate":2000,"EgressBurst":4294967295},
		  "dns":{"Servers":["10.96.0.10"],"Searches":["svc"],"Options":["ndots:5"]},"cgroupPath":"/kubepods","ips":["10.244.1.5"],"mac":"0a:58:0a:f4:00:05",
		  "io.kubernetes.cri.pod-annotations":{"a":"b"}}`,
		`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"::"}],
		  "bandwidth":{"ingressRate":1000,"ingressBurst":4294967295,"egressRate":2000,"egressBurst":4294967295},
		  "dns":{"servers":["10.96.0.10"],"searches":["svc"],"options":["ndots:5"]},"cgroupPath":"/kubepods","ips":["10.244.1.5/24"],"mac":"0A:58:0A:F4:00:05",
		  "io.kubernetes.cri.pod-annotations":{"a":"b"}}`,
	} {
		c, err := ParseCapabilities(nodetest.Asking(raw))
		if err != nil {
			t.Fatal(err)
		}
		ports, err := c.ports()
		if err != nil || len(ports) != 1 || ports[0].Protocol != "tcp" || ports[0].HostPort != 8080 || ports[0].ContainerPort != 80 || !ports[0].HostIP.IsUnspecified() {
			t.Errorf("ports %+v (%v)", ports, err)
		}
		if c.Bandwidth == nil || *c.Bandwidth != (bandwidth{1000, 4294967295, 2000, 4294967295}) {
			t.Errorf("bandwidth %+v", c.Bandwidth)
		}
		if c.DNS == nil || len(c.DNS.Servers)+len(c.DNS.Searches)+len(c.DNS.Options) != 3 || c.CgroupPath == "" || c.PodAnnotations["a"] != "b" {
			t.Errorf("the rest %+v", c)
		}
	}
}

func FuzzCapabilities(f *testing.F) {
	f.Add([]byte(`{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]}`))
	f.Add([]byte(`{"bandwidth":{"ingressRate":1,"egressBurst":18446744073709551615},"mac":"0a:58:0a:f4:00:05","ips":["10.244.1.5/24",""]}`))
	f.Add([]byte(`{"dns":{"servers":[""]},"cgroupPath":"","io.kubernetes.cri.pod-annotations":{"":""}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseCapabilities(nodetest.Asking(string(raw)))
		if err != nil {
			var e *cniproto.Error
			if !errors.As(err, &e) || e.Code != cniproto.CodeDecode {
				t.Fatalf("error without code 6: %v", err)
			}
			return
		}
		pa := nodetest.Attachment("web", "u1")
		interfaces, err := Plan(pa, "eth0", 1500, all)
		if err != nil {
			t.Fatal(err)
		}
		add := &ledger.Add{Interfaces: interfaces}
		if err := c.Apply(add, ledger.Pod{Namespace: "ns", Name: "web"}, pa); err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		for i, p := range add.HostPorts {
			for _, q := range add.HostPorts[:i] {
				if p.Overlaps(q) || p.HostPort == 0 || p.ContainerPort == 0 {
					t.Fatalf("ports %+v", add.HostPorts)
				}
			}
		}
		// Accepted values can be encoded and decoded again.
		written, err := json.Marshal(add.HostPorts)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(written, &add.HostPorts); err != nil {
			t.Fatal(err)
		}
	})
}
