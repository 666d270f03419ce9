package check

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
)

// members are the pods of the check on one node. A pod that does not run is nil.
type members struct {
	place
	server, hostPort, node, sender *attached
	service                        *corev1.Service
	// refused is the reason why the API server has not taken the sender; empty if it has.
	refused string
}

// attached is a running pod with its addresses.
type attached struct {
	pod *corev1.Pod
	on  []address
}

// address is an address of a pod.
type address struct {
	network string
	addr    netip.Addr
	mtu     int // of the interface; 0 if it is unknown
	// own is true if Fairlead made the interface, so that others see its address.
	own bool
	// checkedBy checks the source addresses on the interface; empty, with the reason in
	// unchecked, if nothing does.
	checkedBy checker
	unchecked string
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// attachedOf returns a running pod with the addresses of its record, or with its pod IPs if
// another plugin provides its default network.
func attachedOf(p *corev1.Pod, records []v1alpha1.PodAttachment) *attached {
	out := &attached{pod: p}
	recorded := false
	for i := range records {
		spec := &records[i].Spec
		if spec.PodName != p.Name {
			continue
		}
		for _, face := range spec.Interfaces {
			recorded = recorded || face.Default
			for _, text := range face.Addresses {
				if prefix, err := netip.ParsePrefix(text); err == nil {
					a := address{network: face.Network, addr: prefix.Addr(), mtu: int(face.MTU), own: true}
					a.checkedBy, a.unchecked = checkerOf(face.Binding)
					out.on = append(out.on, a)
				}
			}
		}
	}
	if recorded || p.Spec.HostNetwork {
		return out
	}
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out.on = append(out.on, address{network: v1alpha1.DefaultNetwork, addr: addr, unchecked: otherPlugin})
		}
	}
	return out
}

// task is a probe of a pod, and the row for its outcome.
type task struct {
	pod   *corev1.Pod
	row   Row
	probe probe.Probe
}

// planner collects tasks, and rows for tests that cannot be tried.
type planner struct {
	tasks []task
	rows  []Row
}

func (p *planner) add(from *attached, row Row, pr probe.Probe) {
	p.tasks = append(p.tasks, task{from.pod, row, pr})
}

// plan returns the probes of all pods, and rows for the tests that cannot be tried.
func plan(all []members, s settings, hasDNS bool) ([]task, []Row) {
	p := &planner{}
	for i := range all {
		for k := range all {
			if i != k {
				p.pair(&all[i], &all[k])
			}
		}
		p.sameNode(&all[i])
		next := &all[(i+1)%len(all)]
		p.ports(&all[i], next)
		p.services(&all[i], next)
		p.elsewhere(&all[i], s, hasDNS)
		p.sources(&all[i], next)
	}
	p.missing(s, hasDNS)
	return p.tasks, p.rows
}

// pair asks a pod from a pod of another node, on each network and family that both have.
func (p *planner) pair(from, to *members) {
	if from.server == nil || to.server == nil {
		return
	}
	for _, own := range from.server.on {
		for _, there := range to.server.on {
			if own.network != there.network || own.addr.Is4() != there.addr.Is4() {
				continue
			}
			row := Row{Network: own.network, Family: family(own.addr), From: from.name, To: to.name}
			at := probe.Probe{Address: at(there.addr, serverPort), Name: to.server.pod.Name}
			if own.own {
				at.Source = own.addr.String()
			}
			for _, t := range []struct {
				test Test
				kind probe.Kind
			}{{testTCP, probe.TCP}, {testUDP, probe.UDP}, {testSize, probe.Size}} {
				row.Test, at.Kind, at.Size = t.test, t.kind, 0
				if t.kind == probe.Size && own.mtu > 0 && there.mtu > 0 {
					at.Size = min(own.mtu, there.mtu)
				}
				p.add(from.server, row, at)
			}
		}
	}
}

// sameNode asks the second pod of a node from the first, and both from the node itself.
func (p *planner) sameNode(m *members) {
	if m.server == nil {
		return
	}
	if m.hostPort != nil {
		for _, there := range m.hostPort.on {
			row := Row{Test: testSame, Network: there.network, Family: family(there.addr), From: m.name, To: m.name}
			if m.server.has(there) {
				p.add(m.server, row, probe.Probe{Kind: probe.TCP, Address: at(there.addr, serverPort), Name: m.hostPort.pod.Name})
			}
		}
	}
	if m.node == nil {
		return
	}
	for _, there := range m.server.on {
		if there.network == v1alpha1.DefaultNetwork {
			row := Row{Test: testFromNode, Network: there.network, Family: family(there.addr), From: m.name, To: m.name}
			p.add(m.node, row, probe.Probe{Kind: probe.TCP, Address: at(there.addr, serverPort), Name: m.server.pod.Name})
		}
	}
}

// has reports whether a pod has an address of the network and family of another.
func (a *attached) has(other address) bool { return len(a.like(other)) > 0 }

// like returns the addresses of a pod, which may be nil, of the network and family of another.
func (a *attached) like(other address) (out []address) {
	if a == nil {
		return nil
	}
	for _, own := range a.on {
		if own.network == other.network && own.addr.Is4() == other.addr.Is4() {
			out = append(out, own)
		}
	}
	return out
}

// ports asks the host ports of a pod's own and of the next node.
func (p *planner) ports(from, next *members) {
	if from.server == nil {
		return
	}
	targets := []*members{from}
	if next != from {
		targets = append(targets, next)
	}
	for _, to := range targets {
		if to.hostPort == nil {
			continue
		}
		for _, addr := range to.addresses {
			there := address{network: v1alpha1.DefaultNetwork, addr: addr}
			if from.server.has(there) && to.hostPort.has(there) {
				row := Row{Test: testHostPort, Family: family(addr), From: from.name, To: to.name, Via: to.name}
				p.add(from.server, row, probe.Probe{Kind: probe.TCP, Address: at(addr, hostPort), Name: to.hostPort.pod.Name})
			}
		}
	}
}

// services asks the Service of the next node's pod by its address and by the port of both
// nodes, and the pod's own Service.
func (p *planner) services(from, next *members) {
	if from.server == nil {
		return
	}
	p.service(testHairpin, from, from)
	if next != from {
		p.service(testService, from, next)
		p.nodePort(from, next)
	}
}

// service asks the Service of a pod by its addresses.
func (p *planner) service(test Test, from, to *members) {
	if to.service == nil || to.server == nil {
		return
	}
	for _, text := range to.service.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil && bothHave(from, to, addr) {
			row := Row{Test: test, Family: family(addr), From: from.name, To: to.name}
			p.add(from.server, row, probe.Probe{Kind: probe.TCP, Address: at(addr, serverPort), Name: to.server.pod.Name})
		}
	}
}

// nodePort asks the Service of a pod by its port of both nodes.
func (p *planner) nodePort(from, to *members) {
	if to.service == nil || to.server == nil || len(to.service.Spec.Ports) == 0 {
		return
	}
	port := int(to.service.Spec.Ports[0].NodePort)
	for _, via := range []*members{from, to} {
		for _, addr := range via.addresses {
			if slices.Contains(to.service.Spec.IPFamilies, corev1.IPFamily(family(addr))) && bothHave(from, to, addr) {
				row := Row{Test: testNodePort, Family: family(addr), From: from.name, To: to.name, Via: via.name}
				p.add(from.server, row, probe.Probe{Kind: probe.TCP, Address: at(addr, port), Name: to.server.pod.Name})
			}
		}
	}
}

// bothHave reports whether the servers of both nodes have the family of an address on the
// default network. Services may have families that the pods do not have.
func bothHave(from, to *members, addr netip.Addr) bool {
	there := address{network: v1alpha1.DefaultNetwork, addr: addr}
	return from.server.has(there) && to.server.has(there)
}

// elsewhere resolves a name, and connects to the addresses of the user.
func (p *planner) elsewhere(from *members, s settings, hasDNS bool) {
	if from.server == nil {
		return
	}
	if hasDNS {
		p.add(from.server, Row{Test: testDNS, From: from.name, To: dnsName}, probe.Probe{Kind: probe.DNS, Address: dnsName})
	}
	for _, target := range s.egress {
		p.add(from.server, Row{Test: testEgress, From: from.name, To: target}, probe.Probe{Kind: probe.Connect, Address: target})
	}
}

// dnsName exists in every cluster.
const dnsName = "kubernetes.default.svc"

// missing adds a row for each test that has none.
func (p *planner) missing(s settings, hasDNS bool) {
	not := func(t Test, why string) {
		if !slices.ContainsFunc(p.tasks, func(one task) bool { return one.row.Test == t }) &&
			!slices.ContainsFunc(p.rows, func(r Row) bool { return r.Test == t }) {
			p.rows = append(p.rows, Row{Test: t, Result: NotTried, Detail: why})
		}
	}
	for _, t := range []Test{testTCP, testUDP, testSize, testService} {
		not(t, "no pods of two nodes have addresses of one network and family")
	}
	const noHost = "no pod with a port or the network of its node runs"
	not(testSame, noHost)
	not(testFromNode, noHost)
	not(testHostPort, noHost)
	not(testHairpin, "no pod with a Service runs")
	not(testNodePort, "no pods of two nodes have addresses of one network and family")
	if !hasDNS {
		not(testDNS, "no Service in kube-system has the label k8s-app=kube-dns")
	}
	if len(s.egress) == 0 {
		not(testEgress, "--egress names no address")
	}
	if !s.policy {
		not(testPolicy, "--policy is not given")
	}
	not(testSource, "no pod with the capability NET_RAW runs, or no other one beside it")
}

// planPolicy returns the probes that a policy has to deny: those whose connections came
// about before.
func planPolicy(before []task, rows []Row) []task {
	var out []task
	for i, t := range before {
		if t.row.Test == testTCP && t.row.Network == v1alpha1.DefaultNetwork && rows[i].Result == Passed {
			t.row.Test, t.probe.Kind = testPolicy, probe.Denied
			out = append(out, t)
		}
	}
	return out
}

func at(addr netip.Addr, port int) string {
	return netip.AddrPortFrom(addr, uint16(port)).String() //nolint:gosec // a port
}

// outcomeOf completes the row of a task.
func outcomeOf(t task, o probe.Outcome) Row {
	row := t.row
	if o.Passed {
		row.Result = Passed
		if o.Size > 0 {
			row.Detail = strconv.Itoa(o.Size) + " bytes"
		}
		return row
	}
	if o.Untried {
		row.Result, row.Detail = NotTried, o.Problem
		return row
	}
	row.Result, row.Source = Failed, o.Source
	what := t.probe.Address
	if o.Size > 0 {
		what = strconv.Itoa(o.Size) + " bytes to " + what
	}
	row.Detail = what + ": " + o.Problem
	return row
}
