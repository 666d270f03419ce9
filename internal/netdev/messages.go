package netdev

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h: no link-local
// address.
const addrGenModeNone = 1

// pair is a veth as it is born: one end in the host namespace as a port of the
// bridge, the other in the sandbox under its last name. Moving the other end
// there later would cost some 17 ms, in which the kernel changes nothing else.
type pair struct {
	host      string
	hostMAC   net.HardwareAddr
	bridge    int // index
	peer      string
	peerMAC   net.HardwareAddr
	mtu       int
	namespace int // file descriptor
}

func create(p pair) step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(upMessage())
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.host)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, p.hostMAC))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(p.bridge))))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(LinkGroup)))
	for _, a := range oneQueue() {
		req.AddData(a)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.peer))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, p.peerMAC)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(p.namespace)))
	for _, a := range oneQueue() {
		peer.AddChild(a)
	}
	req.AddData(info)
	return step{what: fmt.Sprintf("creating %s with its host end %s", p.peer, p.host), req: req}
}

// oneQueue asks for what a veth uses. The kernel would make as many queues as the
// machine may have processors, and then take all but one out of use, which waits
// for every processor once for each end (veth_init_queues, from Linux 5.15).
func oneQueue() []*nl.RtAttr {
	return []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
		nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
	}
}

// nameHost writes down whose host end it is, which cannot be part of the
// creation. The port of a bridge needs no address of its own, so none is made,
// tested and announced.
func nameHost(name, alias string, ipv6 bool) step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	if ipv6 {
		req.AddData(noLinkLocal())
	}
	return step{what: "naming the owner of host end " + name, req: req}
}

// ownHost names a host end and has the bridge reflect its frames, in one message.
func ownHost(name, alias string, ipv6 bool) step {
	s := nameHost(name, alias, ipv6)
	s.req.Type = unix.RTM_NEWLINK
	s.req.AddData(reflecting())
	return s
}

// reflect has the bridge send frames back out of the port that they came in by
// (hairpin mode). Where the packet filter sees bridged packets, which is the
// default as soon as the module br_netfilter is there, a pod that reaches itself
// through a Service or a host port is bridged, not routed.
func reflect(link int) step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link)
	req.AddData(msg)
	req.AddData(reflecting())
	return step{what: "having the bridge reflect frames", req: req}
}

// reflecting is the setting of a bridge's port. Beside other attributes of a link
// only RTM_NEWLINK takes it.
func reflecting() *nl.RtAttr {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	return info
}

// noLinkLocal keeps the kernel from making an IPv6 address of its own.
func noLinkLocal() *nl.RtAttr {
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addrGenModeNone))
	return families
}

func raise(name string) step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(upMessage())
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return step{what: "setting up " + name, req: req}
}

func upMessage() *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	return msg
}

// createBridge makes a bridge, down, as ours, with no address but those it is
// given. An MTU that was set makes the
// bridge keep it when ports come and go, but not one that it was born with nor
// one that it had already: hence the detour.
func createBridge(name string, mac net.HardwareAddr, mtu int, ipv6 bool) []step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	req.AddData(info)
	alias := nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(bridgeAlias))
	steps := []step{
		{what: "creating bridge " + name, req: req},
		setLink(name, "alias", alias),
		setLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu-1)))),
		setLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))),
	}
	if ipv6 {
		steps = append(steps, setLink(name, "way to make addresses", noLinkLocal()))
	}
	return steps
}

// setLink changes one attribute of a link.
func setLink(name, what string, attr *nl.RtAttr) step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(attr)
	return step{what: "setting the " + what + " of " + name, req: req}
}

func remove(name string) step {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return step{what: "removing " + name, req: req}
}

// addAddress adds an address without duplicate address detection: who gives
// out addresses has seen to it, and waiting for it costs seconds. Nor does the
// kernel make a route of its own to one that is alone in its prefix: of IPv4 it
// does not either, and of the node's own it would lead into the tunnel.
func addAddress(link int, a netip.Prefix, scope netlink.Scope) step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := nl.NewIfAddrmsg(family(a.Addr()))
	msg.Prefixlen, msg.Scope, msg.Index = uint8(a.Bits()), uint8(scope), uint32(link)
	req.AddData(msg)
	if a.Addr().Is6() {
		flags := uint32(unix.IFA_F_NODAD)
		if a.IsSingleIP() {
			flags |= unix.IFA_F_NOPREFIXROUTE
		}
		req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	}
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.Addr().AsSlice()))
	if a.Addr().Is4() && a.Bits() < 31 {
		req.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, broadcast(a)))
	}
	return step{what: "adding address " + a.String(), req: req}
}

// podRoute is a route inside a sandbox.
func podRoute(link int, r Route, onLink bool) step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len = uint8(family(r.Destination.Addr())), uint8(r.Destination.Bits())
	msg.Protocol = RouteProtocol
	what := "adding route to " + r.Destination.String()
	if r.Gateway.IsValid() {
		what += " via " + r.Gateway.String()
		if !onLink {
			msg.Flags = unix.RTNH_F_ONLINK
		}
	} else if r.Destination.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link))))
	if r.Destination.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Destination.Addr().AsSlice()))
	}
	if r.Gateway.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	return step{what: what, req: req}
}

// knowNeighbour tells the host which MAC an address has now. The last pod with
// that address had another one, and the host would send there until it doubts
// it and asks again: seconds. The entry ages like one that was asked for. When
// the kernel's table is full, pods start nevertheless.
func knowNeighbour(bridge int, a netip.Addr, mac net.HardwareAddr) step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	req.AddData(&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(bridge), State: unix.NUD_REACHABLE})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac))
	return step{what: "telling the host the MAC of " + a.String(), req: req, optional: true}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func broadcast(p netip.Prefix) []byte {
	b := p.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | 1<<(32-p.Bits()) - 1
	return binary.BigEndian.AppendUint32(nil, n)
}
