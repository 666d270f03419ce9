package host

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/netdev/echo"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// probed returns the answers to echo requests from node 0 to node 1 of a cable: from its
// own address and from the first address of its block, in IPv4 and in IPv6.
func probed(t *testing.T, k *Kernel) []echo.Answer {
	t.Helper()
	var all []echo.Request
	for n, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		all = append(all, echo.Request{From: nodeIP(0, of), To: nodeIP(1, of)}, echo.Request{From: blocksOf(0)[n].Addr(), To: nodeIP(1, of)})
	}
	answers, err := echo.New(k.Sockets).Probe(t.Context(), all, 3*time.Second) // the addresses may be new
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
	if diff := cmp.Diff([]echo.Answer{echo.Answered, echo.Answered, echo.Answered, echo.Answered}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
	if _, err := echo.New(nodes[0].Sockets).Probe(t.Context(), make([]echo.Request, 65), time.Second); err == nil {
		t.Error("more requests than allowed are sent")
	}
	if _, err := echo.New(nodes[0].Sockets).Probe(t.Context(), []echo.Request{{From: nettest.Addr("10.0.0.1"), To: nettest.Addr("fd00::1")}}, time.Second); err == nil {
		t.Error("a request between two families is sent")
	}
}

// A network that drops packets with the addresses of pods, as port security does, lets
// the node's own requests through alone, also while the packets of pods take the tunnel: the
// requests go by the direct way, about which they ask.
func TestEchoesOfPodsAreDropped(t *testing.T) {
	for name, state := range map[string]func(i int) State{"direct": func(i int) State { return stateOf(i, 2) }, "tunnelled": tunnelledState} {
		t.Run(name, func(t *testing.T) { podsAreDropped(t, state) })
	}
}

func podsAreDropped(t *testing.T, state func(i int) State) {
	nodes, middle := newCableWith(t, 2)
	for i, k := range nodes {
		apply(t, k, state(i))
	}
	loadRules(t, middle.Namespace(), "table bridge cloud { chain passing { type filter hook forward priority 0; ip saddr 10.244.0.0/16 drop; ip6 saddr fd00:1::/32 drop; }; }")
	if diff := cmp.Diff([]echo.Answer{echo.Answered, echo.Unanswered, echo.Answered, echo.Unanswered}, probed(t, nodes[0])); diff != "" {
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
	if diff := cmp.Diff([]echo.Answer{echo.Answered, echo.Translated, echo.Answered, echo.Translated}, probed(t, nodes[0])); diff != "" {
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
	if diff := cmp.Diff([]echo.Answer{echo.Answered, echo.Answered, echo.Answered, echo.Answered}, probed(t, nodes[0])); diff != "" {
		t.Error(diff)
	}
}

// tunnelledState is the state of node i of two on one link that use the tunnel.
func tunnelledState(i int) State {
	s := stateOf(i, 2)
	s.Peers, s.Loose = nil, true
	s.Tunnel = &Tunnel{VNI: 158, Port: 4789, MAC: TunnelMAC(string(rune('a' + i))), MTU: 1450}
	for n, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		s.Tunnel.Underlay = append(s.Tunnel.Underlay, nodeIP(i, of))
		s.Remote = append(s.Remote, RemoteNode{
			Underlay: nodeIP(1-i, of), MAC: TunnelMAC(string(rune('a' + 1 - i))), Blocks: blocksOf(1 - i)[n : n+1],
		})
	}
	return s
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
