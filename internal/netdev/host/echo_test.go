package host

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// probed returns the answers to echo requests from node 0 to node 1 of a cable: from its
// own address and from the first address of its block, in IPv4 and in IPv6.
func probed(t *testing.T, k *Kernel) []Answer {
	t.Helper()
	var all []Echo
	for n, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		all = append(all, Echo{nodeIP(0, of), nodeIP(1, of)}, Echo{blocksOf(0)[n].Addr(), nodeIP(1, of)})
	}
	answers, err := k.Echoes(t.Context(), all, 3*time.Second) // the addresses may be new
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// A request from an address of a block is answered if the network between the nodes lets
// it through, as is one from the node's own address.
func TestEchoes(t *testing.T) {
	nodes := newCable(t, 2)
	for i, k := range nodes {
		apply(t, k, stateOf(i, 2))
	}
	if diff := cmp.Diff([]Answer{Answered, Answered, Answered, Answered}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
	if _, err := nodes[0].Echoes(t.Context(), make([]Echo, maxEchoes+1), time.Second); err == nil {
		t.Error("more requests than allowed are sent")
	}
	if _, err := nodes[0].Echoes(t.Context(), []Echo{{nettest.Addr("10.0.0.1"), nettest.Addr("fd00::1")}}, time.Second); err == nil {
		t.Error("a request between two families is sent")
	}
}

// A network that drops packets with the addresses of pods, as port security does, lets
// the node's own requests through alone.
func TestEchoesOfPodsAreDropped(t *testing.T) {
	nodes, middle := newCableWith(t, 2)
	for i, k := range nodes {
		apply(t, k, stateOf(i, 2))
	}
	loadRules(t, middle.Namespace(), "table bridge cloud { chain passing { type filter hook forward priority 0; ip saddr 10.244.0.0/16 drop; ip6 saddr fd00:1::/32 drop; }; }")
	if diff := cmp.Diff([]Answer{Answered, Unanswered, Answered, Unanswered}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
}

// A rule that masquerades the request is not the network's fault.
func TestEchoesAreTranslated(t *testing.T) {
	nodes := newCable(t, 2)
	for i, k := range nodes {
		apply(t, k, stateOf(i, 2))
	}
	loadRules(t, nodes[0].Namespace(), `table inet other { chain leaving { type nat hook postrouting priority srcnat; oifname "up0" masquerade; }; }`)
	if diff := cmp.Diff([]Answer{Answered, Translated, Answered, Translated}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
}

// While the way back leads through the tunnel, a request by the direct way is answered
// also if the nodes had strict reverse path filters: otherwise a node never finds out that
// the direct way works again.
func TestEchoesWhileTunnelled(t *testing.T) {
	nodes := newCable(t, 2)
	for i, k := range nodes {
		nettest.In(t, k.Namespace(), func() error {
			_, err := link.SetSysctl("net/ipv4/conf/all/rp_filter", "1")
			return err
		})
		state := tunnelledState(i)
		apply(t, k, state)
		settled(t, k, state)
	}
	if diff := cmp.Diff([]Answer{Answered, Answered, Answered, Answered}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
}

// tunnelledState is the state of node i of two on one link that use the tunnel.
func tunnelledState(i int) State {
	s := stateOf(i, 2)
	s.Peers, s.Loose = nil, true
	s.Tunnel = &Tunnel{VNI: 158, Port: 4789, MAC: TunnelMAC(string(rune('a' + i))), MTU: 1450}
	s.MTU = 1450 - TunnelOverhead(nodeIP(i, netip.Addr.Is6))
	for n, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		s.Tunnel.Underlay = append(s.Tunnel.Underlay, nodeIP(i, of))
		s.Remote = append(s.Remote, RemoteNode{
			Underlay: nodeIP(1-i, of), MAC: TunnelMAC(string(rune('a' + 1 - i))), Blocks: blocksOf(1 - i)[n : n+1],
		})
	}
	return s
}

// A pod with the address of a request gets its reply, and the secret in it. With that it
// could have replied in the name of other nodes, as if packets to them arrived (own review,
// probes of direct traffic).
func TestReplyToAnotherRequest(t *testing.T) {
	pod, near, far := nettest.Addr("10.244.1.0"), nettest.Addr("192.0.2.1"), nettest.Addr("192.0.2.2")
	e := newEchoes([]Echo{{pod, near}, {pod, far}})
	e.note(reply{from: near, to: pod, sequence: 0, nonce: e.nonces[0]})
	e.note(reply{from: far, to: pod, sequence: 1, nonce: e.nonces[0]})
	e.note(reply{from: near, to: pod, sequence: 1, nonce: e.nonces[1]})
	e.note(reply{from: far, to: pod, sequence: 2, nonce: e.nonces[1]})
	if diff := cmp.Diff([]Answer{Answered, Unanswered}, e.answers); diff != "" {
		t.Error(diff)
	}
	e.note(reply{from: far, to: pod, sequence: 1, nonce: e.nonces[1]})
	if e.answers[1] != Answered {
		t.Error("a genuine reply does not count")
	}
}

// loadRules loads a file of nft in a namespace.
func loadRules(tb testing.TB, ns *link.Namespace, text string) {
	tb.Helper()
	nettest.In(tb, ns, func() error {
		cmd := exec.CommandContext(tb.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

func FuzzParseReply(f *testing.F) {
	e := newEchoes([]Echo{{nettest.Addr("10.0.0.1"), nettest.Addr("10.0.0.2")}})
	f.Add(append(slices.Concat([]byte{0x45}, make([]byte, ipv4Header-1)), e.message(0)...), true)
	f.Add(append(slices.Concat([]byte{0x60}, make([]byte, ipv6Header-1)), e.message(0)...), false)
	f.Add([]byte{0x4f}, true)
	f.Fuzz(func(t *testing.T, packet []byte, is4 bool) {
		r, ok := parseReply(packet, is4)
		if ok && (len(r.nonce) != nonceBytes || r.from.Is4() != is4 || r.to.Is4() != is4) {
			t.Errorf("%x is parsed as %+v", packet, r)
		}
	})
}
