package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/nft/hostrules"
)

// RulesPace is the delay between a change of rules and their inspection. It gathers
// changes: a program writes many at once, and kube-proxy writes often.
const RulesPace = time.Second

// Reasons of the condition Forwarded.
const (
	reasonForwarded   = "Forwarded"
	reasonDropped     = "Dropped"
	reasonReversePath = "ReversePath"
	reasonNotSure     = "NotSure"
)

// SeeNetwork ends messages that need an operator: the page with instructions.
const SeeNetwork = "see docs/operator/network.md, A firewall of the host"

// RuleKernel traces packets of pods through rules and routes that Fairlead has not set.
type RuleKernel interface {
	// FollowRules returns the fate of each packet in the rules of other programs, and
	// the set of rules whose changes can alter it.
	FollowRules(packets []hostrules.Packet) ([]hostrules.Found, *hostrules.Interest, error)
	// WaysBack reports for each arrival, in order, whether the answer would leave by
	// another link, and whether the kernel drops the packet for that reason.
	WaysBack(all []host.Arrival) ([]host.WayBack, error)
}

// flow is a kind of traffic of pods, with a packet that stands for it.
type flow struct {
	what   string // for messages, as "from pod to pod here (IPv4)"
	packet hostrules.Packet
}

// passage computes the condition Forwarded: whether the host lets packets of pods
// through. It sends no packets: it evaluates rules and routes for packets that pods could
// send or get.
type passage struct {
	kernel RuleKernel
	// kick starts a round of the Network.
	kick func()

	// Input and result of the last inspection. Only one goroutine uses them.
	flows []flow
	found *metav1.Condition

	mu       sync.Mutex
	interest *hostrules.Interest
	due      bool // an inspection is scheduled
	stale    bool // rules have changed since the last inspection
}

// changed schedules an inspection after a change of other programs' rules, if the change
// matters to the flows.
func (p *passage) changed(c host.RuleChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Table != "" && c.Chain != "" && !c.Base && !p.interest.Chain(c.Family, c.Table, c.Chain) || p.due {
		return
	}
	p.due = true
	time.AfterFunc(RulesPace, func() {
		p.mu.Lock()
		p.due, p.stale = false, true
		p.mu.Unlock()
		p.kick()
	})
}

// inspect returns the condition Forwarded, nil if the node has no blocks and so no pods.
// It returns the last result if rules, routes and flows are unchanged.
func (p *passage) inspect(want host.State, up host.Uplink, moved bool) *metav1.Condition {
	flows := planFlows(want, up)
	p.mu.Lock()
	stale := p.stale
	p.stale = false
	p.mu.Unlock()
	if !stale && !moved && slices.Equal(flows, p.flows) {
		return p.found
	}
	p.flows, p.found = flows, nil
	if len(flows) == 0 {
		return nil
	}
	c := p.follow(flows)
	c.Type = v1alpha1.ConditionForwarded
	p.found = &c
	return p.found
}

// follow evaluates the flows against the rules and routes of the kernel.
func (p *passage) follow(flows []flow) metav1.Condition {
	unknown := func(err error) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionUnknown, Reason: reasonNotSure, Message: "not known: " + err.Error()}
	}
	arrivals := make([]host.Arrival, len(flows))
	for i, f := range flows {
		arrivals[i] = host.Arrival{Link: f.packet.In, Source: f.packet.Source}
	}
	ways, err := p.kernel.WaysBack(arrivals)
	if err != nil {
		return unknown(err)
	}
	// Each flow is evaluated twice: where it enters the host and where it is forwarded.
	packets := make([]hostrules.Packet, 0, 2*len(flows))
	for i, f := range flows {
		f.packet.Astray = ways[i].Astray
		enters := f.packet
		enters.Out = ""
		packets = append(packets, enters, f.packet)
	}
	found, interest, err := p.kernel.FollowRules(packets)
	if err != nil {
		return unknown(err)
	}
	p.mu.Lock()
	p.interest = interest
	p.mu.Unlock()
	return judge(flows, ways, found)
}

// judge returns the condition for flows. ways has one entry for each flow, found has two.
func judge(flows []flow, ways []host.WayBack, found []hostrules.Found) metav1.Condition {
	drops, doubts, refused := grouped{}, grouped{}, grouped{}
	for i, f := range flows {
		if ways[i].Refused {
			refused.add("the reverse path filter of "+f.packet.In+" (rp_filter 1)", f.what)
		}
		for _, x := range found[2*i : 2*i+2] {
			switch x.Verdict {
			case hostrules.Drops:
				drops.add(x.By, f.what)
			case hostrules.MayDrop:
				doubts.add(x.By, f.what)
			case hostrules.Passes:
			}
		}
	}
	switch {
	case len(drops.by) > 0:
		drops.merge(refused)
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonDropped, Message: drops.text("drops") + "; " + SeeNetwork}
	case len(refused.by) > 0:
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonReversePath, Message: refused.text("drops") + "; " + SeeNetwork}
	case len(doubts.by) > 0:
		return metav1.Condition{Status: metav1.ConditionUnknown, Reason: reasonNotSure, Message: doubts.text("may drop") + "; " + SeeNetwork}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonForwarded, Message: "no rule of the host drops what pods send or get"}
}

// grouped has the names of flows by the rule or filter that is in their way.
type grouped struct {
	by    []string // rules and filters in the order in which they were found
	flows map[string][]string
}

func (g *grouped) add(by, what string) {
	if g.flows == nil {
		g.flows = map[string][]string{}
	}
	if g.flows[by] == nil {
		g.by = append(g.by, by)
	}
	if !slices.Contains(g.flows[by], what) {
		g.flows[by] = append(g.flows[by], what)
	}
}

func (g *grouped) merge(other grouped) {
	for _, by := range other.by {
		for _, what := range other.flows[by] {
			g.add(by, what)
		}
	}
}

// text describes the flows. verb is "drops" or "may drop".
func (g *grouped) text(verb string) string {
	var parts []string
	for _, by := range g.by {
		parts = append(parts, fmt.Sprintf("%s %s what is sent %s", by, verb, strings.Join(g.flows[by], ", ")))
	}
	return strings.Join(parts, "; ")
}

// planFlows returns flows that stand for all traffic of the node's pods, for the families
// of the node's blocks.
func planFlows(want host.State, up host.Uplink) []flow {
	var out []flow
	for _, is4 := range []bool{true, false} {
		i := slices.IndexFunc(want.Local, func(b host.LocalBlock) bool { return b.Prefix.Addr().Is4() == is4 })
		if i >= 0 {
			out = append(out, familyFlows(want, up, want.Local[i].Prefix)...)
		}
	}
	return out
}

func familyFlows(want host.State, up host.Uplink, local netip.Prefix) []flow {
	family := "IPv6"
	if local.Addr().Is4() {
		family = "IPv4"
	}
	pod := someone(local)
	var out []flow
	add := func(what, in, to string, source, target netip.Addr) {
		out = append(out, flow{what + " (" + family + ")", hostrules.Packet{In: in, Out: to, Source: source, Target: target}})
	}
	add("from pod to pod here", want.Bridge, want.Bridge, pod, another(local))
	if _, ok := ofFamily(up.Addresses, pod); ok {
		add("from pods here to the outside", want.Bridge, want.Uplink, pod, hostrules.World(pod))
	}
	both := func(how, link string, remote netip.Addr) {
		add("from pods here to other nodes"+how, want.Bridge, link, pod, remote)
		add("from other nodes"+how+" to pods here", link, want.Bridge, remote, pod)
	}
	for _, b := range want.Peers {
		if b.Prefix.Addr().Is4() == local.Addr().Is4() {
			both("", want.Uplink, someone(b.Prefix))
			break
		}
	}
	for _, n := range want.Remote {
		i := slices.IndexFunc(n.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() == local.Addr().Is4() })
		if i < 0 {
			continue
		}
		both(" through the tunnel", host.TunnelLink(n.Underlay), someone(n.Blocks[i]))
		if n.Underlay.Is4() == local.Addr().Is4() { // from a node itself, as for a node port
			add("from other nodes themselves through the tunnel to pods here", host.TunnelLink(n.Underlay), want.Bridge, n.Underlay, pod)
		}
		break
	}
	return out
}

// someone returns the second address of a block, or the only one of a block of one.
func someone(block netip.Prefix) netip.Addr {
	if a := block.Addr().Next(); block.Contains(a) {
		return a
	}
	return block.Addr()
}

// another returns the address after someone's, or the first if the block ends there.
func another(block netip.Prefix) netip.Addr {
	if a := someone(block).Next(); block.Contains(a) {
		return a
	}
	return block.Addr()
}

// HostRules is the RuleKernel of the real kernel.
type HostRules struct{ *host.Kernel }

// FollowRules returns the fate of packets in the rules of other programs.
func (HostRules) FollowRules(packets []hostrules.Packet) ([]hostrules.Found, *hostrules.Interest, error) {
	return hostrules.Look(nft.Table, packets)
}
