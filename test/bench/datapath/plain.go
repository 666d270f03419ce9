package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// referenceBridge is the bridge of the reference plugin's network.
const referenceBridge = "cni0"

// plain is a network without a filter and without translation of addresses.
type plain struct {
	// bridge makes the pods of a node ports of one bridge, in one subnet, as the reference
	// plugin does. Otherwise each pod has a plain veth, and the node routes to it.
	bridge bool
	// tunnel leads between the nodes.
	tunnel bool
}

// make makes two nodes with their pods.
func (n plain) make(ctx context.Context, v6 bool) (*bed, error) {
	b, err := newBed(ctx, v6)
	if err != nil {
		return nil, err
	}
	for i := range b.lab.Nodes {
		if err := n.makeNode(b, i); err != nil {
			return nil, errors.Join(fmt.Errorf("node %d: %w", i+1, err), b.close())
		}
	}
	return b, nil
}

func (n plain) makeNode(b *bed, i int) error {
	node := b.lab.Nodes[i]
	h, err := node.Netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := node.Do(forward); err != nil {
		return err
	}
	way, err := n.way(h, b, i)
	if err != nil {
		return err
	}
	bridge := 0
	if n.bridge {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: referenceBridge, MTU: mtu}}
		if err := errors.Join(h.LinkAdd(link), h.LinkSetUp(link)); err != nil {
			return err
		}
		bridge = link.Index
		for _, own := range node.Addresses() {
			if err := addAddress(h, bridge, address(i, -1, own.Addr()), block(i, own.Addr()).Bits()); err != nil {
				return err
			}
		}
	}
	for _, there := range way.gateways {
		if err := addRoute(h, way.index, block(1-i, there), there); err != nil {
			return err
		}
	}
	for pod := range podsOn(i) {
		if err := b.plainPod(h, i, pod, bridge); err != nil {
			return fmt.Errorf("pod %d: %w", pod, err)
		}
	}
	return nil
}

// way is a link of a node to the other node, with the other node's addresses on it.
type way struct {
	index    int
	gateways []netip.Addr
}

func (n plain) way(h *netlink.Handle, b *bed, i int) (w way, err error) {
	here, there := b.lab.Nodes[i].Addresses(), b.lab.Nodes[1-i].Addresses()
	if !n.tunnel {
		uplink, err := h.LinkByName(netlab.Uplink)
		if err != nil {
			return w, err
		}
		w.index = uplink.Attrs().Index
		for _, a := range there {
			w.gateways = append(w.gateways, a.Addr())
		}
		return w, nil
	}
	// As Fairlead does, packets are carried inside of their own family, so there is a tunnel
	// for each; but one of IPv4 is enough to compare with, and the better of the two.
	vxlan := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "plain-vx", MTU: mtu}, VxlanId: tunnelVNI, Port: tunnelPort,
		SrcAddr: here[0].Addr().AsSlice(), Group: there[0].Addr().AsSlice(), Learning: true,
	}
	if err := errors.Join(h.LinkAdd(vxlan), h.LinkSetUp(vxlan)); err != nil {
		return w, fmt.Errorf("add the tunnel: %w", err)
	}
	w.index = vxlan.Index
	for _, a := range here {
		inside := netip.MustParsePrefix("172.30.0.0/24")
		if a.Addr().Is6() {
			inside = netip.MustParsePrefix("fd00:30::/64")
		}
		own, peer := inside.Addr().Next(), inside.Addr().Next().Next()
		if i == 1 {
			own, peer = peer, own
		}
		if err := addAddress(h, w.index, own, inside.Bits()); err != nil {
			return w, err
		}
		w.gateways = append(w.gateways, peer)
	}
	return w, nil
}

// plainPod makes a pod with a veth, and the routes in both directions.
func (b *bed) plainPod(h *netlink.Handle, node, n, bridge int) error {
	p, err := b.newPod(node)
	if err != nil {
		return err
	}
	inside, err := p.ns.Netlink()
	if err != nil {
		return err
	}
	defer inside.Close()
	at, err := os.Open(p.ns.Path())
	if err != nil {
		return err
	}
	defer at.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex, attrs.NumTxQueues, attrs.NumRxQueues = fmt.Sprintf("pod%d", n), mtu, bridge, 1, 1
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: podLink, PeerNamespace: netlink.NsFd(int(at.Fd()))}
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	eth, err := inside.LinkByName(podLink)
	if err != nil {
		return err
	}
	if err := errors.Join(h.LinkSetUp(veth), inside.LinkSetUp(eth)); err != nil {
		return err
	}
	end, err := h.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	for _, a := range p.addresses {
		bits, gateway := a.BitLen(), gatewayOf(a)
		if bridge != 0 {
			bits, gateway = block(node, a).Bits(), address(node, -1, a)
		}
		if err := addAddress(inside, eth.Attrs().Index, a, bits); err != nil {
			return err
		}
		if bridge == 0 {
			err := errors.Join(
				addAddress(h, end.Attrs().Index, gateway, gateway.BitLen()),
				addRoute(h, end.Attrs().Index, netip.PrefixFrom(a, a.BitLen()), netip.Addr{}))
			if err != nil {
				return err
			}
		}
		if err := addRoute(inside, eth.Attrs().Index, netip.PrefixFrom(anyOf(a), 0), gateway); err != nil {
			return err
		}
	}
	return nil
}

// forward makes the namespace of the thread a router.
func forward() error {
	err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)
	if netlab.HasIPv6() {
		err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o600))
	}
	return err
}

func anyOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func addAddress(h *netlink.Handle, index int, a netip.Addr, bits int) error {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
	if a.Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}, address); err != nil {
		return fmt.Errorf("add address %v/%d: %w", a, bits, err)
	}
	return nil
}

// addRoute adds a route; an invalid gateway is none.
func addRoute(h *netlink.Handle, index int, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}
	if via.IsValid() {
		r.Gw, r.Flags = via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := h.RouteAdd(r); err != nil {
		return fmt.Errorf("add route to %v: %w", to, err)
	}
	return nil
}
