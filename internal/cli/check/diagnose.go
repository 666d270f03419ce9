package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// diagnose explains the rows that failed, by the pattern of the failures and the state of
// the nodes. Rows of a test on a path that passes no small packets are left out.
func diagnose(rows []Row, places []place) []Finding {
	d := &diagnosis{rows: rows, places: map[string]place{}, lost: map[lostKey]bool{}}
	for _, p := range places {
		d.places[p.name] = p
	}
	d.pods()
	d.sources()
	d.paths()
	d.sizes()
	d.forged()
	for _, h := range hints {
		d.hint(h)
	}
	return d.findings
}

type diagnosis struct {
	rows     []Row
	places   map[string]place
	findings []Finding
	// lost are the paths on which not even small packets pass.
	lost map[lostKey]bool
}

type lostKey struct{ family, from, to string }

func (d *diagnosis) find(look, problem string, args ...any) {
	d.findings = append(d.findings, Finding{Problem: fmt.Sprintf(problem, args...), Look: look})
}

// of returns the rows of some tests with a result.
func (d *diagnosis) of(result Result, tests ...Test) (out []Row) {
	for _, r := range d.rows {
		if r.Result == result && slices.Contains(tests, r.Test) {
			out = append(out, r)
		}
	}
	return out
}

// hint explains the failures of a test that each concern one node.
type hint struct {
	test Test
	// node returns the node that a row concerns.
	node func(Row) string
	// problem has the nodes for %s.
	problem, look string
}

var hints = []hint{
	{testSame, Row.from, "on %s pods do not reach each other", "kubectl describe nodenetwork, condition ForwardPolicy; the log of fairlead-node"},
	{testFromNode, Row.from, "%s: the node does not reach its own pods, so probes of its kubelet fail", "firewalls on the node; the log of fairlead-node"},
	{testHostPort, Row.via, "a host port of %s does not lead to its pod", "docs/operator/packet-filter.md, \"Host ports\"; firewalls on the node; the log of fairlead-node"},
	{testService, Row.from, "pods of %s do not reach a Service, though they reach its pod", "whether kube-proxy, or its replacement, runs on the node"},
	{testHairpin, Row.from, "on %s a pod does not reach itself through its Service", "the masquerade of kube-proxy on the node; docs/operator/packet-filter.md"},
	{testNodePort, Row.via, "a node port of %s does not lead to a pod", "kube-proxy, or its replacement, on the node; firewalls on the node"},
	{testDNS, Row.from, "pods of %s do not resolve " + dnsName, "the pods of the DNS: kubectl -n kube-system get pods -l k8s-app=kube-dns; NodeLocal DNSCache on the node, if it runs"},
	{testEgress, Row.from, "pods of %s do not reach an address outside", "docs/operator/packet-filter.md, \"Masquerade\"; routes and firewalls of the nodes"},
	{testPolicy, Row.to, "a NetworkPolicy that denies all does not keep pods out on %s", "docs/operator/policies.md; the program that enforces NetworkPolicies on the node"},
}

func (d *diagnosis) hint(h hint) {
	rows := slices.DeleteFunc(d.of(Failed, h.test), func(r Row) bool {
		return d.lost[lostKey{r.Family, r.From, r.To}] || r.Via != "" && d.lost[lostKey{r.Family, r.Via, r.To}]
	})
	if len(rows) == 0 {
		return
	}
	nodes := nodesOf(rows, h.node)
	d.find(h.look, h.problem+"%s", listNodes(nodes), d.conditions(nodes...))
}

// pods explains what keeps the check itself from its work.
func (d *diagnosis) pods() {
	for _, r := range d.of(Failed, testPod) {
		d.find("fairlead status; docs/operator/runbook.md, \"Pods stay in ContainerCreating\"; "+daemonLog(r.From),
			"on node %s no pod starts: %s%s", r.From, r.Detail, d.conditions(r.From))
	}
	for _, r := range d.of(Failed, testExec) {
		d.find("the kubelet of the node, and its port 10250 from the API server",
			"on node %s nothing can be executed in a pod: %s", r.From, r.Detail)
	}
	for _, r := range d.of(Failed, testCleanUp) {
		d.find("kubectl get namespaces -l "+LabelCheck+"; kubectl get pa -A", "the check is not cleaned up: %s", r.Detail)
	}
}

// group is a set of failed rows of one network, with the same cause.
type group struct {
	network          string
	rows             []Row
	families         []string
	from, to, either []string // nodes
}

func groupOf(network string, rows []Row) group {
	g := group{network: network, rows: rows}
	for _, r := range rows {
		g.families, g.from, g.to = append(g.families, r.Family), append(g.from, r.From), append(g.to, r.To)
	}
	g.families, g.from, g.to = unique(g.families), unique(g.from), unique(g.to)
	g.either = unique(slices.Concat(g.from, g.to))
	return g
}

func unique(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }

// byNetwork groups rows by their network.
func byNetwork(rows []Row) []group {
	of := map[string][]Row{}
	for _, r := range rows {
		of[r.Network] = append(of[r.Network], r)
	}
	var out []group
	for _, network := range slices.Sorted(maps.Keys(of)) {
		out = append(out, groupOf(network, of[network]))
	}
	return out
}

// unseen returns the rows of packets that arrived under another address.
func unseen(rows []Row) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Source == "" })
}

// lost returns the rows of packets that did not arrive.
func lost(rows []Row) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Source != "" })
}

// sources explains packets that arrive under another address.
func (d *diagnosis) sources() {
	for _, g := range byNetwork(unseen(d.of(Failed, testTCP, testUDP, testSize))) {
		d.find("docs/operator/packet-filter.md, \"Masquerade\"; the masquerade of kube-proxy (clusterCIDR) and of others on the nodes",
			"pods of %s reach others on network %s under another address, as %s, so NetworkPolicies do not know them", listNodes(g.from), g.network, g.rows[0].Source)
	}
}

// paths explains pods of two nodes that do not reach each other.
func (d *diagnosis) paths() {
	for _, g := range byNetwork(lost(d.of(Failed, testTCP, testUDP))) {
		passed := slices.DeleteFunc(d.of(Passed, testTCP, testUDP), func(r Row) bool { return r.Network != g.network })
		for _, r := range g.rows {
			if g.network == v1alpha1.DefaultNetwork && !slices.ContainsFunc(passed, func(p Row) bool { return sameWay(p, r) }) {
				d.lost[lostKey{r.Family, r.From, r.To}] = true
			}
		}
		// A node whose every path fails is its own finding; the other paths are another.
		rest := g.rows
		for _, node := range broken(g, passed) {
			mine := slices.DeleteFunc(slices.Clone(rest), func(r Row) bool { return r.From != node && r.To != node })
			rest = slices.DeleteFunc(slices.Clone(rest), func(r Row) bool { return r.From == node || r.To == node })
			d.find(lookAt(g.network, node), "only node %s: pods of other nodes and its own do not reach each other on network %s%s%s",
				node, g.network, familyOf(groupOf(g.network, mine), passed), d.conditions(node))
		}
		if len(rest) == 0 {
			continue
		}
		g = groupOf(g.network, rest)
		d.find(lookAt(g.network), "pods do not reach each other on network %s%s: %s%s",
			g.network, familyOf(g, passed), d.pairs(rest), d.conditions(g.either...))
	}
}

func sameWay(a, b Row) bool {
	return a.Network == b.Network && a.Family == b.Family && a.From == b.From && a.To == b.To
}

// broken returns the nodes whose paths all fail in the families that fail, while paths
// between other nodes pass.
func broken(g group, passed []Row) (out []string) {
	for _, node := range g.either {
		touches := func(r Row) bool { return r.From == node || r.To == node }
		failsHere := func(r Row) bool { return slices.Contains(g.families, r.Family) }
		alone := !slices.ContainsFunc(passed, func(r Row) bool { return failsHere(r) && touches(r) })
		others := slices.ContainsFunc(passed, func(r Row) bool { return failsHere(r) && !touches(r) })
		if alone && others {
			out = append(out, node)
		}
	}
	return out
}

// familyOf returns " by IPv6 only ..." if one family fails and the other one passes.
func familyOf(g group, passed []Row) string {
	if len(g.families) != 1 {
		return ""
	}
	for _, p := range passed {
		if p.Family != g.families[0] && slices.Contains(g.either, p.From) && slices.Contains(g.either, p.To) {
			return fmt.Sprintf(" by %s, while %s passes", g.families[0], p.Family)
		}
	}
	return ""
}

// lookAt returns where to look when packets do not pass between nodes.
func lookAt(network string, nodes ...string) string {
	if network != v1alpha1.DefaultNetwork {
		return "the link of network " + network + " between the nodes: the bridge or parent on each, and its VLAN on the switches"
	}
	var look []string
	for _, n := range nodes {
		look = append(look, "kubectl describe nodenetwork "+n, daemonLog(n))
	}
	look = append(look, "whether the network between the nodes passes packets with addresses of pods, and UDP port 4789 (vxlan.port) where they are encapsulated",
		"docs/operator/network.md, \"When nodes do not reach each other\"")
	return strings.Join(look, "; ")
}

// sizes explains packets that are lost because of their size.
func (d *diagnosis) sizes() {
	rows := slices.DeleteFunc(lost(d.of(Failed, testSize)), func(r Row) bool {
		return slices.ContainsFunc(d.of(Failed, testTCP, testUDP), func(small Row) bool { return sameWay(small, r) })
	})
	for _, g := range byNetwork(rows) {
		var mtus []string
		for _, n := range g.either {
			if mtu := d.places[n].network.Status.MTU; mtu > 0 {
				mtus = append(mtus, fmt.Sprintf("%s has an uplink of %d bytes", n, mtu))
			}
		}
		d.find("the MTU of the nodes' uplinks and of the links between them, and filters of ICMP; docs/operator/network.md, \"MTU\"",
			"MTU: small packets pass on network %s and packets of the pods' MTU do not: %s%s", g.network, d.pairs(g.rows), listed(" (", mtus, ")"))
	}
}

// forged explains packets that arrive with the address of another pod, and packets with the
// sender's own address that do not.
func (d *diagnosis) forged() {
	rows := d.of(Failed, testSource)
	for _, g := range byNetwork(unseen(rows)) {
		if g.rows[0].CheckedBy == byNeutron {
			d.find("openstack port show PORT -c port_security_enabled -c allowed_address_pairs, with the ports of these pods; portSecurity of the network and openstack.open[].portSecurityOff; docs/operator/openstack.md",
				"OpenStack does not check the source addresses on network %s, so pods can send with the addresses of others: %s", g.network, d.pairs(g.rows))
			continue
		}
		look := []string{"nft list chain bridge fairlead from-pods on " + listNodes(g.from), "docs/operator/packet-filter.md, \"Source checks\""}
		for _, node := range g.from[:min(maxNamed, len(g.from))] {
			look = append(look, daemonLog(node))
		}
		d.find(strings.Join(look, "; "), "the packet filter of %s does not check the source addresses on network %s, so pods can send with the addresses of others: %s%s",
			listNodes(g.from), g.network, d.pairs(g.rows), d.conditions(g.from...))
	}
	own := slices.DeleteFunc(lost(rows), func(r Row) bool {
		return slices.ContainsFunc(d.of(Failed, testTCP, testUDP, testSame), func(other Row) bool { return sameWay(other, r) })
	})
	for _, g := range byNetwork(own) {
		d.find("nft list chain bridge fairlead from-pods on "+listNodes(g.from)+"; NetworkPolicies that separate namespaces",
			"on network %s packets of pods with NET_RAW do not arrive, though they have the pods' own addresses: %s (%s)", g.network, d.pairs(g.rows), g.rows[0].Detail)
	}
}

// Accessors of rows.
func (r Row) from() string { return r.From }
func (r Row) to() string   { return r.To }
func (r Row) via() string  { return r.Via }

// nodesOf returns a node of each row, once.
func nodesOf(rows []Row, node func(Row) string) (out []string) {
	for _, r := range rows {
		out = append(out, node(r))
	}
	return unique(out)
}

// conditions returns the conditions of the NodeNetworks of nodes that are not True.
func (d *diagnosis) conditions(nodes ...string) string {
	var bad []string
	for _, n := range nodes {
		for _, c := range d.places[n].network.Status.Conditions {
			mayDrop := c.Type == v1alpha1.ConditionForwardPolicy && c.Status == metav1.ConditionUnknown
			if c.Status == metav1.ConditionFalse || mayDrop {
				bad = append(bad, fmt.Sprintf("NodeNetwork %s: %s is %s: %s", n, c.Type, c.Status, c.Message))
			}
		}
	}
	return listed("; ", bad, "")
}

// listed returns a list between two texts, or nothing if it is empty.
func listed(before string, all []string, after string) string {
	if len(all) == 0 {
		return ""
	}
	return before + strings.Join(all, "; ") + after
}

// maxNamed is how many pairs or nodes a finding names.
const maxNamed = 4

// pairs returns the first pairs of nodes of rows.
func (d *diagnosis) pairs(rows []Row) string {
	var all []string
	for _, r := range rows {
		all = append(all, r.From+" to "+r.To)
	}
	return listNodes(unique(all))
}

func listNodes(all []string) string {
	text := strings.Join(all[:min(maxNamed, len(all))], ", ")
	if more := len(all) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func daemonLog(node string) string {
	return "the log of fairlead-node on " + node
}
