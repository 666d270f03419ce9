package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// bridgeMAC returns a local address made from the bridge's name. A bridge whose MAC is
// set does not change it with its ports; pods keep the MAC in their neighbour tables.
func bridgeMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return append(net.HardwareAddr{0x0a, 0x58}, sum[:4]...)
}

func (r *hostRun) applyBridge() error {
	name, mac := r.want.Bridge, bridgeMAC(r.want.Bridge)
	dev, err := r.host.LinkByName(name)
	if link.IsNoLink(err) {
		if err := r.conn.Do(createBridge(name, mac, r.want.MTU, r.ipv6)...); err != nil {
			return err
		}
		r.changed("created bridge %s (mac %s, mtu %d)", name, mac, r.want.MTU)
		r.down = append(r.down, name)
		r.bridge, err = r.conn.Index(name)
		return err
	}
	if err != nil {
		return fmt.Errorf("looking at bridge %s: %w", name, err)
	}
	a := dev.Attrs()
	if dev.Type() != "bridge" || a.Alias != "" && a.Alias != bridgeAlias {
		return fmt.Errorf("%w: %s is a %s that is not ours (alias %q, not %q)", link.ErrExists, name, dev.Type(), a.Alias, bridgeAlias)
	}
	r.bridge = a.Index
	if a.Alias == "" {
		r.repair(link.SetLink(name, "alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(bridgeAlias))), "marked bridge %s as ours", name)
	}
	if a.MTU != r.want.MTU {
		r.repair(link.SetLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(r.want.MTU)))),
			"set the mtu of %s from %d to %d", name, a.MTU, r.want.MTU)
	}
	if a.HardwareAddr.String() != mac.String() {
		r.repair(link.SetLink(name, "mac", nl.NewRtAttr(unix.IFLA_ADDRESS, mac)), "set the mac of %s from %s to %s", name, a.HardwareAddr, mac)
	}
	if a.Flags&net.FlagUp == 0 {
		r.down = append(r.down, name)
	}
	return nil
}

// applyAddresses gives the bridge the gateways' addresses, and the tunnel's interfaces
// the addresses of the node. Masquerading uses an address of the outgoing interface as
// the source.
func (r *hostRun) applyAddresses(ctx context.Context) {
	gateways := make([]netip.Prefix, 0, len(r.want.Gateways))
	for _, g := range r.want.Gateways {
		gateways = append(gateways, gatewayPrefix(g))
	}
	r.applyAddressesOf(ctx, r.want.Bridge, r.bridge, gateways)
	if r.want.Tunnel == nil {
		return
	}
	var own []netip.Prefix
	for _, a := range r.want.Tunnel.Underlay {
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, a := range r.want.Tunnel.Underlay {
		if index := r.tunnels.index(a); index != 0 {
			r.applyAddressesOf(ctx, tunnelName(a), index, own)
		}
	}
}

// applyAddressesOf gives a link exactly these addresses. The link-local IPv6 address that
// the kernel makes itself may stay.
func (r *hostRun) applyAddressesOf(ctx context.Context, name string, index int, addresses []netip.Prefix) {
	missing := map[netip.Prefix]bool{}
	for _, p := range addresses {
		missing[p] = true
	}
	dev := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	have, err := link.Dump(ctx, "listing the addresses of "+name, func() ([]netlink.Addr, error) {
		return r.host.AddrList(dev, netlink.FAMILY_ALL)
	})
	if err != nil {
		r.failed(err)
		return
	}
	for _, a := range have {
		p, ok := link.ToPrefix(a.IPNet)
		if !ok || missing[p] {
			delete(missing, p)
			continue
		}
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := r.host.AddrDel(dev, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			r.failed(fmt.Errorf("removing address %v from %s: %w", p, name, err))
			continue
		}
		r.changed("removed address %v from %s", p, name)
	}
	for _, p := range addresses {
		if !missing[p] {
			continue
		}
		scope := netlink.SCOPE_UNIVERSE
		if p.Addr().IsLinkLocalUnicast() {
			scope = netlink.SCOPE_LINK // never the source of packets that leave the node
		}
		r.repair(link.AddAddress(index, p, scope), "added address %v to %s", p, name)
	}
}

// gatewayPrefix returns a gateway's address with its prefix length on the bridge.
func gatewayPrefix(g netip.Addr) netip.Prefix {
	if g.Is6() && g.IsLinkLocalUnicast() {
		return netip.PrefixFrom(g, 64)
	}
	return netip.PrefixFrom(g, g.BitLen())
}

// adoptOrphans makes host ends ports of the bridge again after they lost it because it
// was removed.
func (r *hostRun) adoptOrphans(ctx context.Context) {
	all, err := link.Dump(ctx, "listing links", r.host.LinkList)
	if err != nil {
		r.failed(err)
		return
	}
	for _, dev := range all {
		l, ok := plug.FoundEnd(dev)
		if !ok || l.ContainerID == "" || dev.Attrs().MasterIndex != 0 {
			continue // an interface without an alias may still be under construction
		}
		if l.Bridge != "" && l.Bridge != r.want.Bridge {
			continue // it lost another bridge
		}
		err := r.host.LinkSetMasterByIndex(dev, r.bridge)
		if err == nil {
			err = r.conn.Do(plug.Reflect(l.Index)) // this setting was lost with the bridge
		}
		switch {
		case link.IsNoLink(err): // it is being removed
		case err != nil:
			r.failed(fmt.Errorf("putting %s back on %s: %w", l.HostLink, r.want.Bridge, err))
		default:
			r.changed("put %s of container %s back on %s", l.HostLink, l.ContainerID, r.want.Bridge)
		}
	}
}

// createBridge returns the steps that make a bridge with the alias of Fairlead, down,
// without an address of the kernel's. A bridge keeps its MTU when ports come and go only
// if the MTU was set after the creation, to another value than it had. The steps
// therefore set it to another value first.
func createBridge(name string, mac net.HardwareAddr, mtu int, ipv6 bool) []link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	req.AddData(info)
	alias := nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(bridgeAlias))
	steps := []link.Step{
		{What: "creating bridge " + name, Req: req},
		link.SetLink(name, "alias", alias),
		link.SetLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu-1)))),
		link.SetLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))),
	}
	if ipv6 {
		steps = append(steps, link.SetLink(name, "way to make addresses", link.NoLinkLocal()))
	}
	return steps
}

// bridgeAlias is the alias of the bridge.
const bridgeAlias = link.AliasPrefix + "bridge"
