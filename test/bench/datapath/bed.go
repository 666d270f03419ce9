package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"fairlead.dev/fairlead/test/netlab"
)

// podLink is the name of a pod's interface.
const podLink = "eth0"

// bed has two nodes on one link, with two pods on the first node and one on the second.
type bed struct {
	lab  *netlab.Lab
	pods [2][]*pod
}

// pod is a network namespace with its addresses, IPv4 first.
type pod struct {
	ns        *netlab.Namespace
	addresses []netip.Addr
}

func newBed(ctx context.Context, v6 bool) (*bed, error) {
	lab, err := netlab.New(ctx, netlab.Config{Nodes: 2, IPv4Only: !v6})
	if err != nil {
		return nil, err
	}
	return &bed{lab: lab}, nil
}

func (b *bed) close() error {
	var errs []error
	for _, on := range b.pods {
		for _, p := range on {
			errs = append(errs, p.ns.Close())
		}
	}
	return errors.Join(append(errs, b.lab.Close())...)
}

// podsOn is how many pods a node has.
func podsOn(node int) int { return 2 - node }

// newPod makes an empty namespace for the next pod of a node.
func (b *bed) newPod(node int) (*pod, error) {
	ns, err := netlab.NewNamespace()
	if err != nil {
		return nil, err
	}
	p := &pod{ns: ns}
	for _, own := range b.lab.Nodes[node].Addresses() {
		p.addresses = append(p.addresses, address(node, len(b.pods[node]), own.Addr()))
	}
	b.pods[node] = append(b.pods[node], p)
	return p, nil
}

// block returns the block of a node, in the family of an address.
func block(node int, like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(node), 0}), 26)
	}
	return netip.MustParsePrefix(fmt.Sprintf("fd00:244:%x::/122", node))
}

// address returns the address of a pod, in the family of an address.
func address(node, pod int, like netip.Addr) netip.Addr {
	a := block(node, like).Addr()
	for range pod + 2 {
		a = a.Next()
	}
	return a
}

// gatewayOf returns the gateway of pods, in the family of an address.
func gatewayOf(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.MustParseAddr("fe80::1")
}
