package node

import (
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/test/nodetest"
)

// TestCapabilitiesOfAnAdd: the capabilities that a runtime passes are applied, recorded
// and in the result.
func TestCapabilitiesOfAnAdd(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		pa := nodetest.Attachment("web", "u1")
		pa.Spec.Interfaces[0].MAC = ""
		w.api.put(pa)
		raw, err := w.addAsking("c1", "web", "u1", `{"ips":["10.244.1.5/24"],"mac":"02:00:00:00:00:09",
			"bandwidth":{"ingressRate":8000,"egressRate":16000,"egressBurst":80000},"dns":{"servers":["10.96.0.10"],"searches":["svc"]}}`)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"nameservers":["10.96.0.10"]`, `"search":["svc"]`, `"mac":"02:00:00:00:00:09"`} {
			if !strings.Contains(string(raw), want) {
				t.Errorf("the result does not have %s: %s", want, raw)
			}
		}
		settle()
		w.restart()
		p := w.kernel.links[plug.RoutedName("c1", "eth0")].plug
		if want := (plug.Bandwidth{IngressRate: 8000, EgressRate: 16000, EgressBurst: 80000}); p.Bandwidth == nil || *p.Bandwidth != want || p.MAC.String() != "02:00:00:00:00:09" {
			t.Errorf("plugged %+v", p)
		}
		rec := w.network.ledger.Get("c1")
		if rec == nil || rec.Interfaces()[0].Bandwidth == nil || rec.Interfaces()[0].MAC != "02:00:00:00:00:09" {
			t.Errorf("record %+v", rec)
		}
	})
}

func TestCapabilitiesThatCannotBe(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("web", "u1")
		for _, c := range []struct {
			runtimeConfig string
			code          int
			words         []string
		}{
			{`{"ips":["10.244.1.9"]}`, cniproto.CodeInvalidConfig, []string{"runtimeConfig.ips[0]", "10.244.1.9", "10.244.1.5"}},
			{`{"ips":["10.244.1.5","not an address"]}`, cniproto.CodeInvalidConfig, []string{"runtimeConfig.ips[1]", "not an address"}},
			{`{"mac":"02:00:00:00:00:09"}`, cniproto.CodeInvalidConfig, []string{"runtimeConfig.mac", "02:00:00:00:00:09", "0a:58:0a:f4:00:05"}},
			{`{"mac":"nonsense"}`, cniproto.CodeInvalidConfig, []string{"runtimeConfig.mac", "nonsense"}},
			{`{"portMappings":[{"hostPort":65536,"containerPort":80}]}`, cniproto.CodeInvalidConfig, []string{"portMappings[0].hostPort", "65536"}},
			{`{"portMappings":[{"hostPort":80,"containerPort":0}]}`, cniproto.CodeInvalidConfig, []string{"portMappings[0].containerPort"}},
			{`{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]}`, cniproto.CodeInvalidConfig, []string{"protocol", "icmp", "sctp"}},
			{`{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"localhost"}]}`, cniproto.CodeInvalidConfig, []string{"hostIP", "localhost"}},
			{`{"portMappings":[{"hostPort":81,"containerPort":81},{"hostPort":80,"containerPort":80,"hostIP":"fd00::1"}]}`, cniproto.CodeInvalidConfig, []string{"portMappings[1].hostIP", "fd00::1", "10.244.1.5/32"}},
			{`{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"::"}]}`, cniproto.CodeInvalidConfig, []string{"portMappings[0].hostIP", "::", "10.244.1.5/32"}},
			{`{"portMappings":[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":81}]}`, cniproto.CodeInvalidConfig, []string{"portMappings[1].hostPort", "80"}},
			{`{"portMappings":{"hostPort":80}}`, cniproto.CodeDecode, []string{"runtimeConfig", "portMappings"}},
			{`{"portMappings":[{"hostPort":"80"}]}`, cniproto.CodeDecode, []string{"hostPort"}},
			{`{"bandwidth":{"ingressRate":-1}}`, cniproto.CodeDecode, []string{"ingressRate"}},
			{`[]`, cniproto.CodeDecode, []string{"runtimeConfig"}},
		} {
			_, err := w.addAsking("c1", "web", "u1", c.runtimeConfig)
			nodetest.WantCode(t, err, c.code, c.words...)
			w.wantLinks()
			w.wantRecords()
		}
		w.mustAdd("c2", "web", "u1") // no address is held any more
	})
}

// Host ports that belong to the node are refused at every address: the tunnel's port
// would take the packets of other nodes (own review 6).
func TestReservedHostPorts(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.reserved = []answer.ReservedPort{{Protocol: "udp", First: 4789, Last: 4789, Option: "vxlan.port"}, {Protocol: "tcp", First: 6443, Last: 6443, Option: "hostPorts.reserved"}}
		w.restart()
		w.pod("web", "u1")
		before := w.filter.in("")
		for asked, want := range map[string][]string{
			`{"hostPort":4789,"containerPort":53,"protocol":"udp"}`:                                      {"4789/udp", "ns/web", "vxlan.port"},
			`{"hostPort":6443,"containerPort":80}`:                                                       {"6443/tcp", "hostPorts.reserved"},
			`{"hostPort":6443,"containerPort":80,"hostIP":"127.0.0.1"}`:                                  {"6443/tcp", "hostPorts.reserved"},
			`{"HostPort":8080,"ContainerPort":80},{"HostPort":6443,"Protocol":"TCP","ContainerPort":80}`: {"6443/tcp", "hostPorts.reserved"},
		} {
			_, err := w.addAsking("c1", "web", "u1", `{"portMappings":[`+asked+`]}`)
			nodetest.WantCode(t, err, cniproto.CodeInvalidConfig, want...)
		}
		settle()
		w.wantLinks()
		w.wantRecords()
		w.filter.want(t, "", before...)
		if _, err := w.addAsking("c2", "web", "u1", `{"portMappings":[{"hostPort":4789,"containerPort":80},{"hostPort":6443,"containerPort":80,"protocol":"udp"}]}`); err != nil {
			t.Errorf("the same ports of other protocols: %v", err)
		}
	})
}
