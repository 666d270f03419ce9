package link

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h: no link-local
// address.
const addrGenModeNone = 1

// NoLinkLocal returns the attribute that keeps the kernel from making a link-local IPv6
// address.
func NoLinkLocal() *nl.RtAttr {
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addrGenModeNone))
	return families
}

// Raise returns the step that sets a link up.
func Raise(name string) Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(UpMessage())
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return Step{What: "setting up " + name, Req: req}
}

// SetGroup returns the step that puts a link into a group (ip-link(8)).
func SetGroup(name string, group uint32) Step {
	return SetLink(name, "group", nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
}

// Lower returns the step that sets a link down.
func Lower(name string) Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Change = unix.IFF_UP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return Step{What: "setting down " + name, Req: req}
}

// UpMessage returns the beginning of a message that sets a link up.
func UpMessage() *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	return msg
}

// SetLink returns the step that changes one attribute of a link.
func SetLink(name, what string, attr *nl.RtAttr) Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(attr)
	return Step{What: "setting the " + what + " of " + name, Req: req}
}

// Remove returns the step that removes a link.
func Remove(name string) Step {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return Step{What: "removing " + name, Req: req}
}

// AddAddress returns the step that adds an address without duplicate address detection,
// which takes seconds: the controller never assigns an address twice. For an IPv6 address
// that is alone in its prefix, the step also keeps the kernel from making a route; for
// such an IPv4 address the kernel makes none anyway. The route to an address of the node
// would lead into the tunnel.
func AddAddress(link int, a netip.Prefix, scope netlink.Scope) Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg := nl.NewIfAddrmsg(Family(a.Addr()))
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
	return Step{What: "adding address " + a.String(), Req: req}
}

// Neighbour returns the step that writes a neighbour of a link, in a state as unix.NUD_PERMANENT. Without
// a MAC the host answers for the address on this link, in its own name.
func Neighbour(link int, a netip.Addr, mac net.HardwareAddr, state uint16) Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	msg := &netlink.Ndmsg{Family: uint8(Family(a)), Index: uint32(link), State: state}
	if mac == nil {
		msg.Flags = unix.NTF_PROXY
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	if mac != nil {
		req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac))
	}
	return Step{What: "writing the neighbour " + a.String(), Req: req}
}

// EUI64 returns the link-local address that the kernel derives from a MAC (RFC 4291,
// appendix A).
func EUI64(mac net.HardwareAddr) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80, 11: 0xff, 12: 0xfe}
	if len(mac) == 6 {
		copy(a[8:11], mac[:3])
		copy(a[13:], mac[3:])
		a[8] ^= 2
	}
	return netip.AddrFrom16(a)
}

// Family returns the kernel's number of the family of an address.
func Family(a netip.Addr) int {
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
