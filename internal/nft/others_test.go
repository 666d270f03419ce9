package nft_test

import (
	"net/netip"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/nft"
)

// A host port takes no node port of a Service, whichever program registered its chain first.
func TestHostPortsComeAfterServices(t *testing.T) {
	l := newLab(t)
	node4, world4 := l.node.V4.Addr(), l.world.V4.Addr()
	l.pod(5, nft.Port{Protocol: "tcp", HostPort: 30080, ContainerPort: 80}, nft.Port{Protocol: "udp", HostPort: 30080, ContainerPort: 80}) // nothing answers there
	serve(t, l.pod(6).Namespace, 81)
	serves := "ip daddr " + node4.String() + " meta l4proto { tcp, udp } th dport 30080 dnat to 10.244.0.6:81"
	run(t, l.node.Namespace, "table ip proxy {\nchain services { type nat hook prerouting priority dstnat; "+serves+"; }\nchain own { type nat hook output priority -100; "+serves+"; }\n}", "nft", "-f", "-")
	for _, when := range []string{"the proxy began later", "the daemon began later"} {
		wantSeen(t, l.world.Namespace, node4, 30080, world4)
		wantSeen(t, l.node.Namespace, node4, 30080, node4)
		if t.Failed() {
			t.Fatal(when)
		}
		run(t, l.node.Namespace, "", "nft", "delete", "table", "inet", nft.Table) // the Keeper writes it again
		for deadline := time.Now().Add(limit); ; <-time.After(10 * time.Millisecond) {
			state, err := l.node.State()
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("the tables are %v, %v", state.Tables, err)
			}
			if len(state.Tables) == 4 {
				break
			}
		}
	}
}

// A host port is at the addresses of the node and at 127.0.0.1. Other addresses on the node are not
// taken: its resolver, NodeLocal DNS, a Service of IPVS.
func TestHostPortsAreAtTheNode(t *testing.T) {
	l := newLab(t)
	a, b := l.pod(5, nft.Port{Protocol: "tcp", HostPort: 53, ContainerPort: 80}, nft.Port{Protocol: "udp", HostPort: 53, ContainerPort: 80}), l.pod(6)
	serve(t, a.Namespace, 80)
	node4, node6 := l.node.V4.Addr(), l.node.V6.Addr()
	wantSeen(t, l.node.Namespace, netip.MustParseAddr("127.0.0.1"), 53, node4)
	for _, text := range []string{"127.0.0.53", "169.254.20.10", "10.96.0.10", "fd00:10:96::a"} {
		at := netip.MustParseAddr(text)
		if !at.IsLoopback() {
			run(t, l.node.Namespace, "", "ip", "address", "add", netip.PrefixFrom(at, at.BitLen()).String(), "dev", "lo")
		}
		for _, network := range []string{"tcp", "udp"} {
			if _, err := ask(t, l.node.Namespace, network, at, 53, time.Second); err == nil {
				t.Errorf("a pod answers the node for %s at %s", network, at)
			}
			if _, err := ask(t, b.Namespace, network, at, 53, time.Second); err == nil {
				t.Errorf("a pod answers another pod for %s at %s", network, at)
			}
		}
	}
	wantSeen(t, l.world.Namespace, node4, 53, l.world.V4.Addr())
	wantSeen(t, l.world.Namespace, node6, 53, l.world.V6.Addr())
}
