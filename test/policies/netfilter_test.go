package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// TestNetfilterSees shows which traffic of pods an enforcer finds in the hooks forward and
// postrouting of its node. The default network is routed, also between two pods of one node,
// so br_netfilter is not needed. A further network on a bridge is bridged.
func TestNetfilterSees(t *testing.T) {
	nodes := newNodes(t, 2)
	a, b, far := nodes[0].pod(t, "a", "", 5), nodes[0].pod(t, "b", "", 6), nodes[1].pod(t, "far", "", 5)
	nettest.AddBridge(t, nodes[0].Namespace(), "br9", 1500)
	nettest.Steps(t, nodes[0].Sockets, link.Raise("br9"))
	for i, p := range []*pod{a, b} {
		p.plug(t, plug.Interface{
			ContainerID: p.name, Name: "net1", MTU: 1500, Addresses: []netip.Prefix{nettest.Prefix(fmt.Sprintf("192.168.9.%d/24", 5+i))},
			Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br9"}},
		})
	}
	for _, tc := range []struct {
		name    string
		to      *pod
		address netip.Addr
		call    string // bridge-nf-call-iptables
		sees    bool
	}{
		{"the default network on one node", b, b.addresses[0].Addr(), "0", true},
		{"the default network on one node, IPv6", b, b.addresses[1].Addr(), "0", true},
		{"the default network on two nodes, IPv6", far, far.addresses[1].Addr(), "0", true},
		{"the default network on one node, with br_netfilter", b, b.addresses[0].Addr(), "1", true},
		{"the default network on two nodes", far, far.addresses[0].Addr(), "0", true},
		{"a network on a bridge", b, nettest.Addr("192.168.9.6"), "0", false},
		{"a network on a bridge, with br_netfilter", b, nettest.Addr("192.168.9.6"), "1", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes[0].callNetfilter(t, tc.call)
			count(t, nodes[0], tc.address)
			nettest.Reaches(t, a.ns, tc.to.ns, tc.address)
			for _, hook := range []string{"forward", "postrouting"} {
				if n := counted(t, nodes[0], hook); (n > 0) != tc.sees {
					t.Errorf("%s sees %d packets, want any: %v", hook, n, tc.sees)
				}
			}
		})
	}
}

// callNetfilter sets whether bridged packets pass the hooks of IP. It skips the test on a
// kernel that lets none pass.
func (n *node) callNetfilter(t *testing.T, value string) {
	t.Helper()
	err := n.Namespace().Do(func() error {
		_, v4 := link.SetSysctl("net/bridge/bridge-nf-call-iptables", value)
		_, v6 := link.SetSysctl("net/bridge/bridge-nf-call-ip6tables", value)
		return errors.Join(v4, v6)
	})
	if err != nil {
		nettest.Missing(t, "needs br_netfilter: %v", err)
	}
}

// nftables runs nft in a namespace.
func nftables(t *testing.T, ns *link.Namespace, stdin string, args ...string) string {
	t.Helper()
	var out []byte
	nettest.In(t, ns, func() (err error) {
		cmd := exec.CommandContext(t.Context(), "nft", args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	return string(out)
}

// count begins to count the packets to an address in two hooks.
func count(t *testing.T, n *node, to netip.Addr) {
	t.Helper()
	rules := "table inet probe\ndelete table inet probe\ntable inet probe {\n"
	family := "ip"
	if to.Is6() {
		family = "ip6"
	}
	for _, hook := range []string{"forward", "postrouting"} {
		rules += fmt.Sprintf("chain %s {\ntype filter hook %s priority 0\n%s daddr %s counter\n}\n", hook, hook, family, to)
	}
	nftables(t, n.Namespace(), rules+"}\n", "-f", "-")
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

// counted returns the number of packets that a hook has seen.
func counted(t *testing.T, n *node, hook string) (count int) {
	t.Helper()
	found := packets.FindStringSubmatch(nftables(t, n.Namespace(), "", "list", "chain", "inet", "probe", hook))
	if found == nil {
		t.Fatalf("chain %s has no counter", hook)
	}
	_, _ = fmt.Sscan(found[1], &count)
	return count
}
