package answer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

// all are the kinds of this build, and place is that of a sandbox.
var (
	all   = kinds.All(nil)
	place = link.Place{Path: "/run/netns/x"}
)

func TestPlan(t *testing.T) {
	pa := nodetest.Attachment("p", "u1", "eth0", "net1", "net2")
	// In the PodAttachment the default interface is the last, and has an MTU.
	i := pa.Spec.Interfaces
	i[0], i[2] = i[2], i[0]
	i[2].MTU = 9000
	i[1].Network, i[1].Binding = "ns/storage", v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br1"}} // its bridge decides
	got, err := Plan(pa, "veth7", 1450, all)
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		Name, Host string
		MTU        int32
	}
	if _, err := Parse(pa, "c1", &ledger.Add{Interfaces: got}, place, all); err != nil {
		t.Fatal(err)
	}
	var lines []line
	for _, i := range got {
		lines = append(lines, line{i.Name, i.Made.HostLink, i.MTU})
	}
	want := []line{
		{"veth7", plug.RoutedName("c1", "veth7"), 9000},
		{"net2", plug.RoutedName("c1", "net2"), 1450},
		{"net1", plug.HostName("c1", "net1"), 0},
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

func TestPlanRefuses(t *testing.T) {
	cases := []struct {
		name   string
		spoil  func(s *v1alpha1.PodAttachmentSpec)
		ifName string
		want   string
	}{
		{name: "nothing", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces = nil }, want: "spec.interfaces: empty"},
		{name: "no default", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Default = false }, want: "default"},
		{name: "the runtime's name is taken", ifName: "net1", spoil: func(*v1alpha1.PodAttachmentSpec) {}, want: `"net1"`},
		{name: "no binding", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[1].Binding.Routed = nil }, want: "net1: invalid: binding"},
		{name: "address", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Addresses = []string{"10.0.0.1"} }, want: "addresses[0]"},
		{name: "gateway", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Gateways = []string{"x"} }, want: "gateways[0]"},
		{name: "mac", spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].MAC = "x" }, want: "mac"},
		{
			name: "destination", want: "routes[0]: destination",
			spoil: func(s *v1alpha1.PodAttachmentSpec) { s.Interfaces[0].Routes = []v1alpha1.Route{{Destination: "x"}} },
		},
		{
			name: "route's gateway", want: "routes[0]: gateway",
			spoil: func(s *v1alpha1.PodAttachmentSpec) {
				s.Interfaces[0].Routes = []v1alpha1.Route{{Destination: "10.0.0.0/8", Gateway: "x"}}
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			pa := nodetest.Attachment("p", "u1", "eth0", "net1")
			tc.spoil(&pa.Spec)
			ifName := tc.ifName
			if ifName == "" {
				ifName = "eth0"
			}
			interfaces, err := Plan(pa, ifName, 1500, all)
			if err == nil {
				_, err = Parse(pa, "c1", &ledger.Add{Interfaces: interfaces}, place, all)
			}
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "ns/p-u1") {
				t.Errorf("got %v, want an error with %q and ns/p-u1", err, tc.want)
			}
		})
	}
}

func TestResultOfADualStackPod(t *testing.T) {
	pa := nodetest.Attachment("p", "u1", "eth0", "net1")
	i := &pa.Spec.Interfaces[0]
	i.Addresses = []string{"10.244.1.5/32", "fd00:10:244::5/128"}
	i.Gateways = []string{"169.254.1.1", "fe80::1"}
	i.Routes = []v1alpha1.Route{{Destination: "10.0.0.0/8", Gateway: "169.254.1.1"}, {Destination: "fd00::/8"}}
	i.DNS = &v1alpha1.DNS{Nameservers: []string{"10.96.0.10"}, Search: []string{"x.local"}}
	for n := range pa.Spec.Interfaces {
		pa.Spec.Interfaces[n].MAC = ""
	}
	interfaces, err := Plan(pa, "eth0", 1500, all)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := interfaces[0].MAC, interfaces[1].MAC; a == b || len(a) != len("0a:58:0a:f4:00:05") {
		t.Errorf("MACs %q and %q", a, b)
	}
	for n := range interfaces {
		interfaces[n].MAC = "0a:58:0a:f4:00:05"
	}
	parsed, err := Parse(pa, "c1", &ledger.Add{Interfaces: interfaces}, place, all)
	if err != nil {
		t.Fatal(err)
	}
	internal := interfaces[1]
	internal.Name, internal.Internal = "fl0", true
	res, err := Result(append(interfaces, internal), parsed[0], "/run/netns/x")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := res.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := InVersion(raw, "0.4.0")
	if err != nil {
		t.Fatal(err)
	}
	h0, h1 := plug.RoutedName("c1", "eth0"), plug.RoutedName("c1", "net1")
	want := `{"cniVersion":"0.4.0","interfaces":[{"name":"` + h0 + `"},` +
		`{"name":"eth0","mac":"0a:58:0a:f4:00:05","sandbox":"/run/netns/x"},{"name":"` + h1 + `"},` +
		`{"name":"net1","mac":"0a:58:0a:f4:00:05","sandbox":"/run/netns/x"}],` +
		`"ips":[{"version":"4","interface":1,"address":"10.244.1.5/32","gateway":"169.254.1.1"},` +
		`{"version":"6","interface":1,"address":"fd00:10:244::5/128","gateway":"fe80::1"}],` +
		`"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"},{"dst":"::/0","gw":"fe80::1"},` +
		`{"dst":"10.0.0.0/8","gw":"169.254.1.1"},{"dst":"fd00::/8"}],` +
		`"dns":{"nameservers":["10.96.0.10"],"search":["x.local"]}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	back, err := InVersion(got, "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if direct, err := Encode(res, "1.0.0"); err != nil || string(back) != string(direct) {
		t.Errorf("recorded in 0.4.0, answered in 1.0.0: %s; want %s, %v", back, direct, err)
	}
	if _, err := InVersion(raw, "9.9.9"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an unknown version: %v", err)
	}
}
