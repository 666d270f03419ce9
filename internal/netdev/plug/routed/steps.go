package routed

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Numbers of settings of a link (linux/ip.h, IPV4_DEVCONF_...).
const (
	confForwarding    = 1
	confSendRedirects = 6
)

// Numbers of attributes of neighbours and of their tables (linux/neighbour.h).
const (
	neighbourProtocol    = 12
	neighbourTableName   = 1
	neighbourTableParams = 6
	paramsIfIndex        = 1
	paramsProxyDelay     = 13
)

// settings returns the step that sets the alias of a host end and its settings. The kernel makes no
// link-local address: the host end has that of the gateway.
func (k *kind) settings(name, containerID, ifname string) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(link.LongAlias(containerID, ifname, word))))
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	if k.IPv6 {
		families = link.NoLinkLocal()
	}
	conf := families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
	conf.AddRtAttr(confForwarding, nl.Uint32Attr(1))
	conf.AddRtAttr(confSendRedirects, nl.Uint32Attr(0))
	req.AddData(families)
	return link.Step{What: "naming the owner of host end " + name, Req: req}
}

// reach returns the steps by which the host is the gateway on a host end, and knows the way to the
// addresses of the sandbox. mac is that of the interface; the host asks for it if it is nil. over is
// unix.NLM_F_REPLACE if a route replaces another one to the address, otherwise unix.NLM_F_EXCL.
func (k *kind) reach(end int, to []netip.Prefix, mac net.HardwareAddr, over uint16) []link.Step {
	var steps []link.Step
	begun := map[bool]bool{}
	for _, p := range to {
		is4 := p.Addr().Is4()
		if !begun[is4] && is4 {
			steps = append(steps, answerAtOnce(end), neighbour(end, GatewayV4, nil))
		}
		if !begun[is4] && !is4 {
			gateway := link.AddAddress(end, netip.PrefixFrom(GatewayV6, GatewayV6.BitLen()), netlink.SCOPE_LINK)
			gateway.Req.Flags = gateway.Req.Flags&^unix.NLM_F_EXCL | unix.NLM_F_REPLACE
			steps = append(steps, gateway)
			if mac != nil { // its source address is checked by the route
				own := link.EUI64(mac)
				steps = append(steps, route(end, netip.PrefixFrom(own, own.BitLen()), netip.Addr{}, unix.NLM_F_APPEND), neighbour(end, own, mac))
			}
		}
		begun[is4] = true
		if mac != nil {
			steps = append(steps, neighbour(end, p.Addr(), mac))
		}
		steps = append(steps, route(end, p, k.source(is4), over))
	}
	return steps
}

// route returns the step that routes a destination to a host end. over is described at reach; a link-local
// address is appended, because other sandboxes may have the same.
func route(end int, to netip.Prefix, source netip.Addr, over uint16) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, int(unix.NLM_F_CREATE|over))
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Protocol = uint8(link.Family(to.Addr())), uint8(to.Bits()), RouteProtocol
	if to.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(end))))
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.Addr().AsSlice()))
	if source.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, source.AsSlice()))
	}
	return link.Step{What: "routing " + to.String() + " to the host end", Req: req, Optional: over == unix.NLM_F_APPEND} // Repair may find it in place
}

// neighbour returns the step that writes a neighbour of a host end, or has the host answer for an
// address if mac is nil. It does not age and takes no place in the kernel's tables of limited size.
func neighbour(end int, a netip.Addr, mac net.HardwareAddr) link.Step {
	step := link.Neighbour(end, a, mac, unix.NUD_PERMANENT)
	step.Req.AddData(nl.NewRtAttr(neighbourProtocol, nl.Uint8Attr(RouteProtocol)))
	return step
}

// tableMessage is struct ndtmsg.
type tableMessage struct{ family uint8 }

func (tableMessage) Len() int            { return 4 }
func (m tableMessage) Serialize() []byte { return []byte{m.family, 0, 0, 0} }

// answerAtOnce returns the step that has the host answer for the gateway without the delay of a proxy,
// up to 0.8 seconds.
func answerAtOnce(end int) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETNEIGHTBL, 0)
	req.AddData(tableMessage{unix.AF_INET})
	req.AddData(nl.NewRtAttr(neighbourTableName, nl.ZeroTerminated("arp_cache")))
	params := nl.NewRtAttr(neighbourTableParams|unix.NLA_F_NESTED, nil)
	params.AddRtAttr(paramsIfIndex, nl.Uint32Attr(uint32(end)))
	params.AddRtAttr(paramsProxyDelay, nl.Uint64Attr(0))
	req.AddData(params)
	return link.Step{What: "having the host answer at once for " + GatewayV4.String(), Req: req}
}
