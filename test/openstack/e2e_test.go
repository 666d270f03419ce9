package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Pods have ports of Neutron, from the API server to the packets. docs/dev/openstack-lab.md
// has the scenarios of kuryr-kubernetes by name.
func TestEndToEnd(t *testing.T) {
	b := newBed(t)
	b.lead(map[string]any{"driver": "neutron"}, nil)
	b.ready()
	b.story("CrossPing", (*bed).crossPing)
	b.story("SecurityGroups", (*bed).securityGroups)
	b.story("NamespaceIsolation", (*bed).namespaceIsolation)
	b.story("HostToNamespace", (*bed).hostToNamespace)
	b.story("NameReuse", (*bed).nameReuse)
	b.story("StaleDEL", (*bed).staleDEL)
	b.story("FullSubnet", (*bed).fullSubnet)
	b.story("PoisonObjects", (*bed).poisonObjects)
	b.story("SlowPort", (*bed).slowPort)
	b.story("APIForgets", (*bed).apiForgets)
	b.story("KilledAtEachStep", (*bed).killedAtEachStep)
	b.story("ChurnUnderKills", (*bed).churnUnderKills)
	b.story("StrangerLeads", (*bed).strangerLeads)
	b.story("Migration", (*bed).migration)
	b.story("NeutronAway", (*bed).neutronAway)
	b.story("NodeRemoved", (*bed).nodeRemoved)
	b.story("Pools", (*bed).pools)
	b.story("BesideNative", (*bed).besideNative)
	b.story("Fabric", (*bed).fabric)
	if !t.Failed() && b.left == 0 { // -run may leave stories out
		b.writeResult()
	}
}

// ready waits until both nodes can start pods, and notes their state.
func (b *bed) ready() {
	b.Helper()
	for _, n := range b.nodes {
		b.await("node "+n.Name, func(context.Context) error { return n.installed() })
		var err error
		if n.baseline, err = n.state(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// writeResult notes the number of pods for the last line of make openstack.
func (b *bed) writeResult() {
	b.Helper()
	if err := os.WriteFile(filepath.Join(b.lab.State, resultFile), []byte(strconv.FormatInt(b.pods.Load(), 10)), 0o600); err != nil {
		b.Error(err)
	}
}

// pings waits until an endpoint pings another, or until it does not.
func (b *bed) pings(from, to *endpoint, want bool) {
	b.Helper()
	b.passes("ping", from, to, want, ping)
}

// connects is pings for TCP, with more than a segment.
func (b *bed) connects(from, to *endpoint, want bool) {
	b.Helper()
	b.passes("TCP", from, to, want, connect)
}

// crossPing has pods of both chassis and a machine reach each other.
func (b *bed) crossPing() {
	a, z, next := b.pod("a", b.nodes[0]), b.pod("z", b.nodes[1]), b.pod("next", b.nodes[0])
	machine, remove := b.machine(b.nodes[1])
	defer remove()
	all := []*endpoint{b.running(a), b.running(z), b.running(next), machine}
	for _, e := range all {
		serve(b.T, e.Namespace, e.address)
	}
	for _, from := range all {
		for _, to := range all {
			if from != to {
				b.pings(from, to, true)
				b.connects(from, to, true)
			}
		}
	}
	b.delete(a, z, next)
	remove()
	b.nothingIsLeft()
}

// securityGroups opens and shuts a group of a pod.
func (b *bed) securityGroups() {
	name := bedName + "-shut"
	group := b.group(name)
	server, client := b.pod("server", b.nodes[0], annotated(v1alpha1.AnnotationSecurityGroups, name)), b.pod("client", b.nodes[1])
	s, c := b.running(server), b.running(client)
	serve(b.T, s.Namespace, s.address)
	b.pings(c, s, false)
	b.connects(c, s, false)
	icmp := b.rule(group, rules.ProtocolICMP, 0)
	b.pings(c, s, true)
	b.connects(c, s, false)
	b.rule(group, rules.ProtocolTCP, smokePort)
	b.connects(c, s, true)
	if err := rules.Delete(b.Context(), b.neutron, icmp).ExtractErr(); err != nil {
		b.Fatal(err)
	}
	b.pings(c, s, false)
	b.connects(c, s, true)
	b.delete(server, client)
	b.nothingIsLeft()
}

// nameReuse replaces a pod by one of the same name and address again and again, as a
// StatefulSet does.
func (b *bed) nameReuse() {
	const address = "10.92.1.77"
	peer := b.pod("peer", b.nodes[0])
	from := b.running(peer)
	var last *corev1.Pod
	for i := range 4 {
		if last != nil {
			b.delete(last)
		}
		last = b.pod("web-0", b.nodes[i%2], annotated(v1alpha1.AnnotationAddresses, address))
		e := b.running(last)
		if e.address.String() != address {
			b.Fatalf("life %d has address %v; want %s", i, e.address, address)
		}
		b.pings(from, e, true)
	}
	b.delete(last, peer)
	b.nothingIsLeft()
}

// staleDEL sends the DEL of another sandbox of a living pod.
func (b *bed) staleDEL() {
	p, peer := b.pod("alive", b.nodes[0]), b.pod("peer", b.nodes[1])
	e, from := b.running(p), b.running(peer)
	b.pings(from, e, true)
	if err := b.nodes[0].del(p, strings.Repeat("5", 64), e.Path()); err != nil {
		b.Errorf("the stale DEL: %v", err)
	}
	b.pings(from, e, true)
	all, err := b.portsOf(b.Context())
	if err != nil || len(all) != 2 {
		b.Errorf("%d ports after the stale DEL, %v; want 2", len(all), err)
	}
	b.delete(p, peer)
	b.nothingIsLeft()
}

// fullSubnet has more pods than addresses on one network. Others start.
func (b *bed) fullSubnet() {
	const room = 5 // of a /29
	b.network(bedName+"-small", "10.95.0.0/29")
	b.c.Network("small", fmt.Sprintf(`{"cniVersion":"1.0.0","type":"fairlead-neutron","network":%q}`, bedName+"-small"))
	var pods []*corev1.Pod
	for i := range room {
		pods = append(pods, b.pod(fmt.Sprintf("small-%d", i), b.nodes[i%2], annotated(pod.AnnotationNetworks, "small")))
	}
	for _, p := range pods {
		b.running(p)
	}
	late := b.pod("late", b.nodes[0], annotated(pod.AnnotationNetworks, "small"))
	b.await("the event of the pod without an address", func(ctx context.Context) error {
		if err := b.warnings(ctx, late); !strings.Contains(err.Error(), "NetworkExhausted") {
			return err
		}
		return nil
	})
	other := b.pod("other", b.nodes[0])
	b.running(other)
	if now, err := b.podOf(b.Context(), late); err != nil || now.Status.Phase == corev1.PodRunning {
		b.Errorf("pod late is %s, %v, without an address", now.Status.Phase, err)
	}
	b.delete(pods[0])
	b.running(late)
	b.delete(append(pods, late, other)...)
	b.nothingIsLeft()
}

// besideNative has a port of Neutron beside a native default interface.
func (b *bed) besideNative() {
	b.createPool()
	b.lead(map[string]any{"driver": "native"}, nil)
	b.c.Network("lan", fmt.Sprintf(`{"cniVersion":"1.0.0","type":"fairlead-neutron","network":%q}`, bedName))
	p, q := b.pod("both-0", b.nodes[0], annotated(pod.AnnotationNetworks, "lan")), b.pod("both-1", b.nodes[1], annotated(pod.AnnotationNetworks, "lan"))
	first, second := b.onPort(p, "net1"), b.onPort(q, "net1")
	serve(b.T, second.Namespace, second.address)
	b.pings(first, second, true)
	b.connects(first, second, true)
	b.delete(p, q)
	b.nothingIsLeft()
}
