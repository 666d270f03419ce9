package check

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
)

// member returns the pods of node-<i>, with addresses of both families on the default
// network and an IPv4 address on a further network.
func member(i int) members {
	name := fmt.Sprintf("node-%d", i)
	pod := func(r role) *corev1.Pod { return podOn(r, i, name, "ns", settings{}) }
	on := func(host int) []address {
		return []address{
			{network: "default", addr: netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i, host)), mtu: 1430, own: true, checkedBy: byNode},
			{network: "default", addr: netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", i, host)), mtu: 1430, own: true, checkedBy: byNode},
		}
	}
	lan := func(host int) address {
		return address{network: "shop/lan", addr: netip.MustParseAddr(fmt.Sprintf("10.9.%d.%d", host, i)), mtu: 1500, own: true, checkedBy: byNeutron}
	}
	server := &attached{pod(roleServer), append(on(1), lan(0))}
	service := serviceOf(server.pod)
	service.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", i)}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.Ports[0].NodePort = int32(30000 + i)
	return members{
		place:    place{name: name, addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))}},
		server:   server,
		hostPort: &attached{pod(roleHostPort), on(2)},
		node:     &attached{pod: pod(roleNode)},
		sender:   &attached{pod(roleSender), append(on(3), lan(3))},
		service:  service,
	}
}

// lines returns tasks in a line each.
func lines(tasks []task) []string {
	var out []string
	for _, t := range tasks {
		p := t.probe
		line := fmt.Sprintf("%s: %s: %s %s size=%d name=%s source=%s", t.pod.Name, t.row.name(), p.Kind, p.Address, p.Size, p.Name, p.Source)
		if p.Forged != "" {
			line += fmt.Sprintf(" forged=%s checked by %s", p.Forged, t.row.CheckedBy)
		}
		out = append(out, strings.TrimSpace(line))
	}
	return out
}

func TestPlan(t *testing.T) {
	tasks, rows := plan([]members{member(1), member(2)}, settings{egress: []string{"192.0.2.99:443"}}, true)
	var got []string
	for _, l := range lines(tasks) {
		if strings.Contains(l, "from node-1 ") {
			got = append(got, l)
		}
	}
	want := []string{
		"server-1: tcp on default by IPv4 from node-1 to node-2: tcp 10.0.2.1:20157 size=0 name=server-2 source=10.0.1.1",
		"server-1: udp on default by IPv4 from node-1 to node-2: udp 10.0.2.1:20157 size=0 name=server-2 source=10.0.1.1",
		"server-1: size on default by IPv4 from node-1 to node-2: size 10.0.2.1:20157 size=1430 name=server-2 source=10.0.1.1",
		"server-1: tcp on default by IPv6 from node-1 to node-2: tcp [fd00:2::1]:20157 size=0 name=server-2 source=fd00:1::1",
		"server-1: udp on default by IPv6 from node-1 to node-2: udp [fd00:2::1]:20157 size=0 name=server-2 source=fd00:1::1",
		"server-1: size on default by IPv6 from node-1 to node-2: size [fd00:2::1]:20157 size=1430 name=server-2 source=fd00:1::1",
		"server-1: tcp on shop/lan by IPv4 from node-1 to node-2: tcp 10.9.0.2:20157 size=0 name=server-2 source=10.9.0.1",
		"server-1: udp on shop/lan by IPv4 from node-1 to node-2: udp 10.9.0.2:20157 size=0 name=server-2 source=10.9.0.1",
		"server-1: size on shop/lan by IPv4 from node-1 to node-2: size 10.9.0.2:20157 size=1500 name=server-2 source=10.9.0.1",
		"server-1: same-node on default by IPv4 from node-1 to node-1: tcp 10.0.1.2:20157 size=0 name=host-port-1 source=",
		"server-1: same-node on default by IPv6 from node-1 to node-1: tcp [fd00:1::2]:20157 size=0 name=host-port-1 source=",
		"node-1: from-node on default by IPv4 from node-1 to node-1: tcp 10.0.1.1:20157 size=0 name=server-1 source=",
		"node-1: from-node on default by IPv6 from node-1 to node-1: tcp [fd00:1::1]:20157 size=0 name=server-1 source=",
		"server-1: host-port by IPv4 from node-1 to node-1 via node-1: tcp 192.0.2.1:20158 size=0 name=host-port-1 source=",
		"server-1: host-port by IPv4 from node-1 to node-2 via node-2: tcp 192.0.2.2:20158 size=0 name=host-port-2 source=",
		"server-1: hairpin by IPv4 from node-1 to node-1: tcp 10.96.0.1:20157 size=0 name=server-1 source=",
		"server-1: service by IPv4 from node-1 to node-2: tcp 10.96.0.2:20157 size=0 name=server-2 source=",
		"server-1: node-port by IPv4 from node-1 to node-2 via node-1: tcp 192.0.2.1:30002 size=0 name=server-2 source=",
		"server-1: node-port by IPv4 from node-1 to node-2 via node-2: tcp 192.0.2.2:30002 size=0 name=server-2 source=",
		"server-1: dns from node-1 to kubernetes.default.svc: dns kubernetes.default.svc size=0 name= source=",
		"server-1: egress from node-1 to 192.0.2.99:443: connect 192.0.2.99:443 size=0 name= source=",
		"sender-1: source-address on default by IPv4 from node-1 to node-1: forged 10.0.1.1:20157 size=0 name=server-1 source=10.0.1.3 forged=10.0.1.2 checked by Node",
		"sender-1: source-address on default by IPv4 from node-1 to node-2: forged 10.0.2.1:20157 size=0 name=server-2 source=10.0.1.3 forged=10.0.1.1 checked by Node",
		"sender-1: source-address on default by IPv6 from node-1 to node-1: forged [fd00:1::1]:20157 size=0 name=server-1 source=fd00:1::3 forged=fd00:1::2 checked by Node",
		"sender-1: source-address on default by IPv6 from node-1 to node-2: forged [fd00:2::1]:20157 size=0 name=server-2 source=fd00:1::3 forged=fd00:1::1 checked by Node",
		"sender-1: source-address on shop/lan by IPv4 from node-1 to node-1: forged 10.9.0.1:20157 size=0 name=server-1 source=10.9.3.1 forged=10.9.0.2 checked by Neutron",
		"sender-1: source-address on shop/lan by IPv4 from node-1 to node-2: forged 10.9.0.2:20157 size=0 name=server-2 source=10.9.3.1 forged=10.9.0.1 checked by Neutron",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("probes of node-1 (-want +got):\n%s", diff)
	}
	if len(tasks) != 2*len(want) {
		t.Errorf("%d probes of two nodes; want %d", len(tasks), 2*len(want))
	}
	wantRows := []Row{
		{Test: testPolicy, Result: NotTried, Detail: "--policy is not given"},
	}
	if diff := cmp.Diff(wantRows, rows); diff != "" {
		t.Errorf("rows of tests that are not tried (-want +got):\n%s", diff)
	}
}

// Services and nodes of two families are asked by the family alone that the pods have.
func TestPlanOfOneFamily(t *testing.T) {
	var all []members
	for i := range 2 {
		m := member(i + 1)
		m.server.on, m.hostPort.on, m.sender.on = m.server.on[:1], m.hostPort.on[:1], m.sender.on[:1]
		m.addresses = append(m.addresses, netip.MustParseAddr("fd00:77::1"))
		m.service.Spec.ClusterIPs = append(m.service.Spec.ClusterIPs, "fd00:96::1")
		m.service.Spec.IPFamilies = append(m.service.Spec.IPFamilies, corev1.IPv6Protocol)
		all = append(all, m)
	}
	tasks, _ := plan(all, settings{}, false)
	families := map[string]int{}
	for _, one := range tasks {
		families[one.row.Family]++
	}
	if diff := cmp.Diff(map[string]int{"IPv4": 26}, families); diff != "" {
		t.Errorf("probes by family (-want +got):\n%s\n%s", diff, strings.Join(lines(tasks), "\n"))
	}
}

// Every test has a row, whatever is missing.
func TestPlanWithout(t *testing.T) {
	lone, without := member(1), member(2)
	without.server, without.hostPort, without.node, without.sender = nil, nil, nil, nil
	all := map[Test]int{}
	for _, tt := range []struct {
		name  string
		all   []members
		tried []Test
	}{
		{"one node", []members{lone}, []Test{testSame, testFromNode, testHostPort, testHairpin, testSource}},
		{"a node without pods", []members{lone, without}, []Test{testSame, testFromNode, testHostPort, testHairpin, testSource}},
		{"nothing", []members{without}, nil},
	} {
		tasks, rows := plan(tt.all, settings{}, false)
		tried := map[Test]bool{}
		for _, one := range tasks {
			tried[one.row.Test] = true
		}
		for _, r := range rows {
			if tried[r.Test] {
				t.Errorf("%s: %s is tried, and has a row that it is not", tt.name, r.Test)
			}
			tried[r.Test] = true
			all[r.Test]++
		}
		for _, test := range order {
			if test != testPod && test != testExec && test != testCleanUp && !tried[test] {
				t.Errorf("%s: %s has no row", tt.name, test)
			}
		}
		for _, want := range tt.tried {
			if tt.tried != nil && !tried[want] {
				t.Errorf("%s: %s is not tried", tt.name, want)
			}
		}
	}
	if all[testTCP] != 3 || all[testSame] != 1 {
		t.Errorf("rows of tests that are not tried: %v; want tcp in all, same-node in the last", all)
	}
}

// A policy is tested where connections came about before.
func TestPlanPolicy(t *testing.T) {
	tasks, _ := plan([]members{member(1), member(2)}, settings{policy: true}, false)
	rows := make([]Row, len(tasks))
	for i := range tasks {
		rows[i] = outcomeOf(tasks[i], probe.Outcome{Passed: tasks[i].row.From == "node-1"})
	}
	got := lines(planPolicy(tasks, rows))
	want := []string{
		"server-1: policy on default by IPv4 from node-1 to node-2: denied 10.0.2.1:20157 size=0 name=server-2 source=10.0.1.1",
		"server-1: policy on default by IPv6 from node-1 to node-2: denied [fd00:2::1]:20157 size=0 name=server-2 source=fd00:1::1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("probes of a policy (-want +got):\n%s", diff)
	}
}

func TestAttachedOf(t *testing.T) {
	p := podOn(roleServer, 1, "node-1", "ns", settings{})
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
	record := func(isDefault bool, network, addr string) []v1alpha1.PodAttachment {
		return []v1alpha1.PodAttachment{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
			Spec: v1alpha1.PodAttachmentSpec{PodName: p.Name, Interfaces: []v1alpha1.Interface{
				{Network: network, Default: isDefault, MTU: 1400, Addresses: []string{addr}, Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}},
			}},
		}}
	}
	addr := netip.MustParseAddr
	for name, tc := range map[string]struct {
		records []v1alpha1.PodAttachment
		want    []address
	}{
		"Fairlead's network": {record(true, "default", "10.0.0.7/32"), []address{
			{network: "default", addr: addr("10.0.0.7"), mtu: 1400, own: true, checkedBy: byNode},
		}},
		"another plugin's, and a further one": {record(false, "shop/lan", "10.9.0.7/24"), []address{
			{network: "shop/lan", addr: addr("10.9.0.7"), mtu: 1400, own: true, checkedBy: byNode},
			{network: "default", addr: addr("10.0.0.7"), unchecked: otherPlugin},
			{network: "default", addr: addr("fd00::7"), unchecked: otherPlugin},
		}},
	} {
		got := attachedOf(p, tc.records).on
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(address{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		s        settings
		networks []string
		err      string
	}{
		"all":               {s: settings{limit: 1, egress: []string{"[2001:db8::1]:443"}}, networks: []string{"shop/lan", "a/b", "shop/lan"}},
		"no node":           {err: "--nodes is 0; must be at least 1"},
		"a short network":   {s: settings{limit: 1}, networks: []string{"lan"}, err: `--network is "lan"; must be namespace/name`},
		"an interface":      {s: settings{limit: 1}, networks: []string{"shop/lan@net1"}, err: "--network is"},
		"egress by address": {s: settings{limit: 1, egress: []string{"192.0.2.1"}}, err: `--egress is "192.0.2.1"; must be host:port`},
	} {
		names, err := tc.s.parse(tc.networks)
		if tc.err == "" && (err != nil || fmt.Sprint(names) != "[a/b shop/lan]") || tc.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.err)) {
			t.Errorf("%s: %v, %v; want error %q", name, names, err, tc.err)
		}
	}
}
