package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	bridgeName = "fairlead0"
	mtu        = 1430 // of pods: 1500 less the tunnel over IPv6
	tunnelPort = 4789
	tunnelVNI  = 158
)

// ours makes two nodes as fairlead-node configures them, with two pods on the first node
// and one on the second.
func ours(ctx context.Context, v6, tunnel bool) (*bed, error) {
	b, err := newBed(ctx, v6)
	if err != nil {
		return nil, err
	}
	for i := range b.lab.Nodes {
		if err := b.ourNode(ctx, i, tunnel); err != nil {
			return nil, errors.Join(fmt.Errorf("node %d: %w", i+1, err), b.close())
		}
	}
	return b, nil
}

// ourNode configures a node and plugs its pods.
func (b *bed) ourNode(ctx context.Context, i int, tunnel bool) error {
	sockets, done, err := socketsAt(b.lab.Nodes[i].Namespace)
	if err != nil {
		return err
	}
	defer done()
	kernel := host.New(sockets)
	if _, err := kernel.ApplyHost(ctx, b.state(i, tunnel)); err != nil {
		return err
	}
	filter := nft.New(func(ctx context.Context, c nft.Change) error {
		return b.lab.Nodes[i].Do(func() error { return new(nft.Kernel).Apply(ctx, c) })
	})
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = filter.Run(running) }()
	filter.SetNode(b.filterNode(i, tunnel))
	kinds := kinds.All(sockets).Sending(sockets, kernel.Source)
	for n := range podsOn(i) {
		pod, err := b.newPod(i)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("pod-%d-%d", i, n)
		p := plug.Interface{
			ContainerID: id, Name: podLink, MAC: plug.RandomMAC(), MTU: mtu,
			Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}
		for _, a := range pod.addresses {
			p.Addresses, p.Gateways = append(p.Addresses, netip.PrefixFrom(a, a.BitLen())), append(p.Gateways, gatewayOf(a))
		}
		at, err := link.OpenNamespace(pod.ns.Path())
		if err != nil {
			return err
		}
		err = errors.Join(kinds.Make(ctx, at, p), at.Close())
		if err != nil {
			return err
		}
	}
	return filter.Wait(ctx)
}

// socketsAt opens sockets in a namespace, and returns a function that closes them.
func socketsAt(ns *netlab.Namespace) (s *link.Sockets, done func(), err error) {
	at, err := link.OpenNamespace(ns.Path())
	if err != nil {
		return nil, nil, err
	}
	if s, err = link.OpenAt(at); err != nil {
		return nil, nil, errors.Join(err, at.Close())
	}
	return s, func() { _ = errors.Join(s.Close(), at.Close()) }, nil
}

// state is the network of a node.
func (b *bed) state(i int, tunnel bool) host.State {
	here, there := b.lab.Nodes[i].Addresses(), b.lab.Nodes[1-i].Addresses()
	s := host.State{IPv4: true, IPv6: true, Uplink: netlab.Uplink}
	if tunnel {
		s.Tunnel = &host.Tunnel{VNI: tunnelVNI, Port: tunnelPort, MAC: tunnelMAC(i), MTU: 1500}
	}
	for f := range here {
		s.Local, s.Sources = append(s.Local, block(i, here[f].Addr())), append(s.Sources, here[f].Addr())
		remote := block(1-i, here[f].Addr())
		if !tunnel {
			s.Peers = append(s.Peers, host.PeerBlock{Prefix: remote, Via: there[f].Addr()})
			continue
		}
		s.Tunnel.Underlay = append(s.Tunnel.Underlay, here[f].Addr())
		s.Remote = append(s.Remote, host.RemoteNode{Underlay: there[f].Addr(), MAC: tunnelMAC(1 - i), Blocks: []netip.Prefix{remote}})
	}
	return s
}

func tunnelMAC(i int) net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 0, 0, 0, byte(i + 1)} }

// filterNode is the node's part of the packet filter.
func (b *bed) filterNode(i int, tunnel bool) nft.Node {
	n := nft.Node{Masquerade: true, Tunnel: nft.Tunnel{Port: tunnelPort, VNI: tunnelVNI}}
	for node, machine := range b.lab.Nodes {
		for _, own := range machine.Addresses() {
			pods := block(node, own.Addr())
			n.Cluster = append(n.Cluster, pods, netip.PrefixFrom(own.Addr(), own.Addr().BitLen()))
			if node != i {
				n.Peers = append(n.Peers, own.Addr())
				continue
			}
			n.Local, n.Own = append(n.Local, pods), append(n.Own, own.Addr())
			if tunnel {
				n.Underlay = append(n.Underlay, own.Addr())
			}
		}
	}
	return n
}
