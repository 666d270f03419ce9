package policies

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// node is a namespace with the network of a node and its packet filter.
type node struct {
	*link.Sockets
	name   string
	index  int
	keeper *nft.Keeper
}

// pod is a namespace with eth0 on the default network of a node.
type pod struct {
	name, role string
	on         *node
	ns         *link.Namespace
	addresses  []netip.Prefix
}

// blocks returns the blocks of a node, of both families.
func blocks(node int) []netip.Prefix {
	return []netip.Prefix{nettest.Prefix(fmt.Sprintf("10.244.%d.0/26", node)), nettest.Prefix(fmt.Sprintf("fd00:%d::/122", node))}
}

// ips returns the addresses of a node, in the order of blocks.
func ips(node int) []netip.Prefix {
	return []netip.Prefix{nettest.Prefix(fmt.Sprintf("192.0.2.%d/24", node+1)), nettest.Prefix(fmt.Sprintf("fd00:99::%d/64", node+1))}
}

// newNodes makes nodes whose uplinks share a link.
func newNodes(t *testing.T, count int) []*node {
	t.Helper()
	nettest.NeedRoot(t)
	nettest.NeedIPv6(t)
	middle := nettest.NewHost(t) // the switch
	var out []*node
	for i := range count {
		n := &node{Sockets: nettest.NewNode(t), name: fmt.Sprintf("node-%d", i), index: i}
		bridge := nettest.LinkNamed(t, middle.Namespace(), nettest.DefaultBridge).Attrs().Index
		nettest.AddCable(t, middle.Namespace(), fmt.Sprintf("port%d", i), bridge, nettest.Cable{To: n.Namespace(), Name: "up0", MTU: 1500})
		uplink := nettest.LinkNamed(t, n.Namespace(), "up0").Attrs().Index
		nettest.Steps(t, n.Sockets, link.Raise("up0"))
		for _, own := range ips(i) {
			nettest.Steps(t, n.Sockets, link.AddAddress(uplink, own, netlink.SCOPE_UNIVERSE))
		}
		state := host.State{Uplink: "up0", IPv4: true, IPv6: true}
		rules := nft.Node{Masquerade: true, Local: blocks(i), Own: []netip.Addr{nettest.Addr("127.0.0.1")}}
		for _, own := range ips(i) {
			rules.Own = append(rules.Own, own.Addr())
		}
		for other := range count {
			rules.Cluster = slices.Concat(rules.Cluster, blocks(other), ips(other))
			for family, block := range blocks(other) {
				own := ips(other)[family].Addr()
				if other == i {
					state.Local, state.Sources = append(state.Local, block), append(state.Sources, own)
				} else {
					state.Peers = append(state.Peers, host.PeerBlock{Prefix: block, Via: own})
				}
			}
		}
		if _, err := host.New(n.Sockets).ApplyHost(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		n.filter(t, rules)
		out = append(out, n)
	}
	return out
}

// filter keeps the packet filter of the node until the end of the test.
func (n *node) filter(t *testing.T, rules nft.Node) {
	t.Helper()
	kernel := &nft.Kernel{}
	n.keeper = nft.New(func(ctx context.Context, c nft.Change) error {
		return n.Namespace().Do(func() error { return kernel.Apply(ctx, c) })
	})
	n.keeper.SetNode(rules)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.keeper.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// pod plugs a pod, whose addresses end in number.
func (n *node) pod(t *testing.T, name, role string, number int) *pod {
	t.Helper()
	p := &pod{name: name, role: role, on: n, ns: nettest.NewNamespace(t)}
	own := []string{fmt.Sprintf("10.244.%d.%d/32", n.index, number), fmt.Sprintf("fd00:%d::%d/128", n.index, number)}
	i := plug.Interface{ContainerID: name, Name: "eth0", MTU: 1400, Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}}
	i.Addresses, i.Gateways = nettest.Pod(own...)
	p.addresses = i.Addresses
	p.plug(t, i)
	return p
}

// plug plugs an interface and lets the packet filter know it.
func (p *pod) plug(t *testing.T, i plug.Interface) {
	t.Helper()
	if err := kinds.All(p.on.Sockets).Make(t.Context(), p.ns, i); err != nil {
		t.Fatal(err)
	}
	if i.Binding.Routed != nil { // no rule names it
		if err := p.on.keeper.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	l := nft.Link{Name: plug.HostName(i.ContainerID, i.Name), MAC: nettest.LinkNamed(t, p.ns, i.Name).Attrs().HardwareAddr}
	for _, a := range i.Addresses {
		l.Addresses = append(l.Addresses, a.Addr())
	}
	p.on.keeper.SetPod(i.ContainerID+" "+i.Name, nft.Pod{Links: []nft.Link{l}})
	if err := p.on.keeper.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}
