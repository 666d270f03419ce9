package check

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
)

// threeNodes returns nodes on one link.
func threeNodes() []place {
	var out []place
	for i := range 3 {
		p := place{name: fmt.Sprintf("node-%d", i+1)}
		p.network.Name = p.name
		p.network.Status.Addresses = []string{fmt.Sprintf("192.0.2.%d/24", i+1)}
		p.network.Status.MTU = 1500
		out = append(out, p)
	}
	return out
}

// rowsOf returns the rows of a check of three nodes. Those fail that fails reports.
func rowsOf(fails func(Row) bool) []Row {
	var out []Row
	add := func(r Row) {
		if r.Result = Passed; fails(r) {
			r.Result, r.Detail = Failed, "no answer"
		}
		out = append(out, r)
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		for i := range 3 {
			from, next := fmt.Sprintf("node-%d", i+1), fmt.Sprintf("node-%d", (i+1)%3+1)
			for k := range 3 {
				to := fmt.Sprintf("node-%d", k+1)
				if i == k {
					continue
				}
				for _, t := range []Test{testTCP, testUDP, testSize} {
					add(Row{Test: t, Network: "default", Family: family, From: from, To: to})
				}
			}
			add(Row{Test: testSame, Network: "default", Family: family, From: from, To: from})
			add(Row{Test: testFromNode, Network: "default", Family: family, From: from, To: from})
			add(Row{Test: testHostPort, Family: family, From: from, To: next, Via: next})
			add(Row{Test: testService, Family: family, From: from, To: next})
			add(Row{Test: testHairpin, Family: family, From: from, To: from})
			add(Row{Test: testNodePort, Family: family, From: from, To: next, Via: next})
			add(Row{Test: testPolicy, Network: "default", Family: family, From: from, To: next})
			add(Row{Test: testSource, Network: "default", Family: family, From: from, To: from, CheckedBy: byNode})
			add(Row{Test: testSource, Network: "default", Family: family, From: from, To: next, CheckedBy: byNode})
			add(Row{Test: testSource, Network: "shop/lan", Family: family, From: from, To: next, CheckedBy: byNeutron})
		}
	}
	for i := range 3 {
		add(Row{Test: testDNS, From: fmt.Sprintf("node-%d", i+1), To: dnsName})
		add(Row{Test: testEgress, From: fmt.Sprintf("node-%d", i+1), To: "192.0.2.99:443"})
	}
	return out
}

func TestDiagnose(t *testing.T) {
	between := func(r Row, a, b string) bool { return r.From == a && r.To == b || r.From == b && r.To == a }
	across := func(r Row) bool {
		return r.From != r.To && strings.HasPrefix(r.To, "node-") && r.Test != testPolicy && r.Test != testSource
	}
	direct := "whether the network between the nodes passes packets with addresses of pods, and UDP port 4789 (vxlan.port) where they are encapsulated"
	whole := "docs/operator/network.md, \"When nodes do not reach each other\""
	for name, tc := range map[string]struct {
		fails  func(Row) bool
		places func([]place)
		source string // the pods see it
		want   []Finding
	}{
		"nothing": {fails: func(Row) bool { return false }},
		"every path": {fails: across, want: []Finding{{
			"pods do not reach each other on network default: node-1 to node-2, node-1 to node-3, node-2 to node-1, node-2 to node-3 and 2 more", direct + "; " + whole,
		}}},
		"one node": {
			fails: func(r Row) bool { return across(r) && (r.From == "node-2" || r.To == "node-2") },
			places: func(all []place) {
				all[1].network.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionFalse, Message: "route to 10.0.1.0/24: busy"}}
			},
			want: []Finding{{
				"only node node-2: pods of other nodes and its own do not reach each other on network default; NodeNetwork node-2: Routed is False: route to 10.0.1.0/24: busy",
				"kubectl describe nodenetwork node-2; the log of fairlead-node on node-2; " + direct + "; " + whole,
			}},
		},
		"one node by IPv6": {
			fails: func(r Row) bool { return r.Family == "IPv6" && across(r) && (r.From == "node-2" || r.To == "node-2") },
			want: []Finding{{
				"only node node-2: pods of other nodes and its own do not reach each other on network default by IPv6, while IPv4 passes",
				"kubectl describe nodenetwork node-2; the log of fairlead-node on node-2; " + direct + "; " + whole,
			}},
		},
		"one family": {
			fails: func(r Row) bool { return r.Family == "IPv6" && across(r) },
			want: []Finding{{
				"pods do not reach each other on network default by IPv6, while IPv4 passes: node-1 to node-2, node-1 to node-3, node-2 to node-1, node-2 to node-3 and 2 more", direct + "; " + whole,
			}},
		},
		"one pair": {
			fails: func(r Row) bool { return across(r) && between(r, "node-1", "node-3") },
			want:  []Finding{{"pods do not reach each other on network default: node-1 to node-3, node-3 to node-1", direct + "; " + whole}},
		},
		"one direction": {
			fails: func(r Row) bool { return across(r) && r.From == "node-1" && r.To == "node-2" },
			want: []Finding{{
				"pods do not reach each other on network default: node-1 to node-2", direct + "; " + whole,
			}},
		},
		"UDP": {
			fails: func(r Row) bool { return r.Test == testUDP && between(r, "node-1", "node-2") },
			want: []Finding{{
				"pods do not reach each other on network default: node-1 to node-2, node-2 to node-1", direct + "; " + whole,
			}},
		},
		"large packets": {
			fails:  func(r Row) bool { return r.Test == testSize && r.From == "node-1" && r.To == "node-2" },
			places: func(all []place) { all[1].network.Status.MTU = 1400 },
			want: []Finding{{
				"MTU: small packets pass on network default and packets of the pods' MTU do not: node-1 to node-2 (node-1 has an uplink of 1500 bytes; node-2 has an uplink of 1400 bytes)",
				"the MTU of the nodes' uplinks and of the links between them, and filters of ICMP; docs/operator/network.md, \"MTU\"",
			}},
		},
		"another source": {
			fails:  func(r Row) bool { return across(r) && r.From == "node-1" && r.Network != "" },
			source: "192.0.2.1",
			want: []Finding{{
				"pods of node-1 reach others on network default under another address, as 192.0.2.1, so NetworkPolicies do not know them",
				"docs/operator/packet-filter.md, \"Masquerade\"; the masquerade of kube-proxy (clusterCIDR) and of others on the nodes",
			}},
		},
		"forged packets of one node arrive": {
			fails:  func(r Row) bool { return r.Test == testSource && r.CheckedBy == byNode && r.From == "node-2" },
			source: "10.0.2.1",
			places: func(all []place) {
				all[1].network.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionFalse, Message: "busy"},
					{Type: v1alpha1.ConditionForwardPolicy, Status: metav1.ConditionUnknown, Message: "policy drop"},
				}
			},
			want: []Finding{{
				"the packet filter of node-2 does not check the source addresses on network default, so pods can send with the addresses of others: node-2 to node-2, node-2 to node-3; NodeNetwork node-2: Routed is False: busy; NodeNetwork node-2: ForwardPolicy is Unknown: policy drop",
				"nft list chain bridge fairlead from-pods on node-2; docs/operator/packet-filter.md, \"Source checks\"; the log of fairlead-node on node-2",
			}},
		},
		"forged packets arrive on a network of OpenStack": {
			fails:  func(r Row) bool { return r.Test == testSource && r.CheckedBy == byNeutron },
			source: "10.9.0.1",
			want: []Finding{{
				"OpenStack does not check the source addresses on network shop/lan, so pods can send with the addresses of others: node-1 to node-2, node-2 to node-3, node-3 to node-1",
				"openstack port show PORT -c port_security_enabled -c allowed_address_pairs, with the ports of these pods; portSecurity of the network and openstack.open[].portSecurityOff; docs/operator/openstack.md",
			}},
		},
		"packets of a pod with NET_RAW are lost": {
			fails: func(r Row) bool {
				return r.Test == testSource && r.From == "node-1" && r.To == "node-2" && r.Network == "default"
			},
			want: []Finding{{
				"on network default packets of pods with NET_RAW do not arrive, though they have the pods' own addresses: node-1 to node-2 (no answer)",
				"nft list chain bridge fairlead from-pods on node-1; NetworkPolicies that separate namespaces",
			}},
		},
		"packets of a pod with NET_RAW are lost as all are": {
			fails: func(r Row) bool {
				return r.From == "node-1" && r.To == "node-2" && r.Network == "default" && r.Test != testPolicy
			},
			want: []Finding{{"pods do not reach each other on network default: node-1 to node-2", direct + "; " + whole}},
		},
		"a node's own pods": {
			fails: func(r Row) bool { return (r.Test == testSame || r.Test == testFromNode) && r.From == "node-3" },
			want: []Finding{
				{"on node-3 pods do not reach each other", "kubectl describe nodenetwork, condition ForwardPolicy; the log of fairlead-node"},
				{"node-3: the node does not reach its own pods, so probes of its kubelet fail", "firewalls on the node; the log of fairlead-node"},
			},
		},
		"a host port": {
			fails: func(r Row) bool { return r.Test == testHostPort && r.Via == "node-3" },
			want:  []Finding{{"a host port of node-3 does not lead to its pod", "docs/operator/packet-filter.md, \"Host ports\"; firewalls on the node; the log of fairlead-node"}},
		},
		"Services of a node": {
			fails: func(r Row) bool { return (r.Test == testService || r.Test == testHairpin) && r.From == "node-1" },
			want: []Finding{
				{"pods of node-1 do not reach a Service, though they reach its pod", "whether kube-proxy, or its replacement, runs on the node"},
				{"on node-1 a pod does not reach itself through its Service", "the masquerade of kube-proxy on the node; docs/operator/packet-filter.md"},
			},
		},
		"all Services": {
			fails: func(r Row) bool { return r.Test == testService || r.Test == testHairpin },
			want: []Finding{
				{"pods of node-1, node-2, node-3 do not reach a Service, though they reach its pod", "whether kube-proxy, or its replacement, runs on the node"},
				{"on node-1, node-2, node-3 a pod does not reach itself through its Service", "the masquerade of kube-proxy on the node; docs/operator/packet-filter.md"},
			},
		},
		"hairpin and a node port": {
			fails: func(r Row) bool {
				return r.Test == testHairpin && r.From == "node-2" || r.Test == testNodePort && r.Via == "node-1"
			},
			want: []Finding{
				{"on node-2 a pod does not reach itself through its Service", "the masquerade of kube-proxy on the node; docs/operator/packet-filter.md"},
				{"a node port of node-1 does not lead to a pod", "kube-proxy, or its replacement, on the node; firewalls on the node"},
			},
		},
		"names of one node, egress of all": {
			fails: func(r Row) bool { return r.Test == testDNS && r.From == "node-2" || r.Test == testEgress },
			want: []Finding{
				{"pods of node-2 do not resolve kubernetes.default.svc", "the pods of the DNS: kubectl -n kube-system get pods -l k8s-app=kube-dns; NodeLocal DNSCache on the node, if it runs"},
				{"pods of node-1, node-2, node-3 do not reach an address outside", "docs/operator/packet-filter.md, \"Masquerade\"; routes and firewalls of the nodes"},
			},
		},
		"all names, and policies": {
			fails: func(r Row) bool { return r.Test == testDNS || r.Test == testPolicy && r.To == "node-1" },
			want: []Finding{
				{"pods of node-1, node-2, node-3 do not resolve kubernetes.default.svc", "the pods of the DNS: kubectl -n kube-system get pods -l k8s-app=kube-dns; NodeLocal DNSCache on the node, if it runs"},
				{"a NetworkPolicy that denies all does not keep pods out on node-1", "docs/operator/policies.md; the program that enforces NetworkPolicies on the node"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			places := threeNodes()
			if tc.places != nil {
				tc.places(places)
			}
			rows := rowsOf(tc.fails)
			for i := range rows {
				if rows[i].Result == Failed {
					rows[i].Source = tc.source
				}
			}
			if diff := cmp.Diff(tc.want, diagnose(rows, places)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// Rows of one node explain a pod that does not start, a kubelet without exec and things
// that were left.
func TestDiagnoseTheCheckItself(t *testing.T) {
	rows := []Row{
		{Test: testPod, From: "node-1", Result: Failed, Detail: "pod server-0 is Pending"},
		{Test: testExec, From: "node-2", Result: Failed, Detail: "dial tcp 192.0.2.2:10250: refused"},
		{Test: testTCP, Network: "shop/lan", Family: "IPv4", From: "node-2", To: "node-3", Result: Failed},
		{Test: testUDP, Network: "shop/lan", Family: "IPv4", From: "node-2", To: "node-3", Result: Failed},
		{Test: testCleanUp, Result: Failed, Detail: "namespace x is Terminating"},
	}
	want := []Finding{
		{"on node node-1 no pod starts: pod server-0 is Pending", "fairlead status; docs/operator/runbook.md, \"Pods stay in ContainerCreating\"; the log of fairlead-node on node-1"},
		{"on node node-2 nothing can be executed in a pod: dial tcp 192.0.2.2:10250: refused", "the kubelet of the node, and its port 10250 from the API server"},
		{"the check is not cleaned up: namespace x is Terminating", "kubectl get namespaces -l fairlead.dev/check; kubectl get pa -A"},
		{"pods do not reach each other on network shop/lan: node-2 to node-3", "the link of network shop/lan between the nodes: the bridge or parent on each, and its VLAN on the switches"},
	}
	if diff := cmp.Diff(want, diagnose(rows, threeNodes())); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestText(t *testing.T) {
	rows := rowsOf(func(r Row) bool {
		return r.Test == testSize && r.From == "node-1" && r.To == "node-2" && r.Family == "IPv4"
	})
	rows = append(rows, Row{Test: testPolicy, Result: NotTried, Detail: "--policy is not given"})
	got := text(buildView(rows, threeNodes(), 5))
	for _, want := range []string{
		"TEST             NETWORK    FAMILY   RESULT     PASSED   REMARK\n",
		"size             default    IPv4     Failed     5/6      -\n",
		"size             default    IPv6     Passed     6/6      -\n",
		"policy           -          -        NotTried   -        --policy is not given\n",
		"\nFAILED   FAMILY   FROM     TO       VIA   DETAIL\nsize     IPv4     node-1   node-2   -     no answer\n",
		"\nMTU: small packets pass on network default and packets of the pods' MTU do not: node-1 to node-2 (",
		"\n  look at: the MTU of the nodes' uplinks",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	if want := "\nFAILED: 1 of 102 tests on 3 of 5 nodes, 1 kind not tried\n"; !strings.HasSuffix(got, want) || t.Failed() {
		t.Errorf("text:\n%s\nwant at its end %q", got, want)
	}
	well := text(buildView(rowsOf(func(Row) bool { return false }), threeNodes(), 3))
	if want := "\nOK: 102 tests passed on 3 of 3 nodes, 0 kinds not tried\n"; !strings.HasSuffix(well, want) {
		t.Errorf("text:\n%s\nwant at its end %q", well, want)
	}
}

// The manual shows the output of a check of two nodes.
func TestManualShowsTheOutput(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operator/check.md")
	if err != nil {
		t.Fatal(err)
	}
	tasks, rows := plan([]members{member(1), member(2)}, settings{}, true)
	for _, one := range tasks {
		o := probe.Outcome{Passed: true, Size: one.probe.Size}
		if one.row.Test == testSize && one.row.Network == "default" && one.row.From == "node-1" {
			o.Passed, o.Problem = false, "no answer: i/o timeout"
		}
		if one.row.Network != "shop/lan" {
			rows = append(rows, outcomeOf(one, o))
		}
	}
	want := text(buildView(rows, threeNodes()[:2], 2))
	if !strings.Contains(string(page), "$ fairlead check\n"+want+"```\n") {
		t.Errorf("docs/operator/check.md lacks the output:\n%s", want)
	}
}

func TestJUnit(t *testing.T) {
	rows := []Row{
		{Test: testTCP, Network: "default", Family: "IPv4", From: "node-1", To: "node-2", Result: Passed},
		{Test: testHostPort, Family: "IPv6", From: "node-1", To: "node-2", Via: "node-2", Result: Failed, Detail: "no <answer>\nat \x1b all"},
		{Test: testDNS, Result: NotTried, Detail: "no DNS"},
	}
	var b bytes.Buffer
	if err := writeJUnit(&b, buildView(rows, threeNodes(), 3)); err != nil {
		t.Fatal(err)
	}
	var got junitSuite
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := junitSuite{XMLName: xml.Name{Local: "testsuite"}, Name: "fairlead check", Tests: 3, Failures: 1, Skipped: 1, Cases: []junitCase{
		{Class: "fairlead.check.tcp", Name: "tcp on default by IPv4 from node-1 to node-2"},
		{Class: "fairlead.check.host-port", Name: "host-port by IPv6 from node-1 to node-2 via node-2", Failure: &junitMessage{
			"no <answer>; at ? all", "a host port of node-2 does not lead to its pod\nlook at: docs/operator/packet-filter.md, \"Host ports\"; firewalls on the node; the log of fairlead-node\n",
		}},
		{Class: "fairlead.check.dns", Name: "dns", Skipped: &junitMessage{Message: "no DNS"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
