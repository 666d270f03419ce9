package host

import (
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
)

// Attributes, and a value of one, that the system package lacks.
const (
	linkEvent         = 44 // IFLA_EVENT of linux/if_link.h
	eventFeatures     = 2  // IFLA_EVENT_FEATURES
	netconfProxyNeigh = 5  // of linux/netconf.h
	neighProtocol     = 12 // NDA_PROTOCOL of linux/neighbour.h
)

// Offsets in a message (RFC 3549 section 2.3): of any kind, about a link, a route, a
// neighbour and the settings of a link.
const (
	typeAt         = 4
	familyAt       = unix.SizeofNlMsghdr
	linkAttrsAt    = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	addrPrefixAt   = unix.SizeofNlMsghdr + 1
	addrScopeAt    = unix.SizeofNlMsghdr + 3
	routePrefixAt  = unix.SizeofNlMsghdr + 1
	routeTableAt   = unix.SizeofNlMsghdr + 4
	routeProtoAt   = unix.SizeofNlMsghdr + 5
	neighAttrsAt   = unix.SizeofNlMsghdr + sizeofNdmsg
	neighStateAt   = unix.SizeofNlMsghdr + 8
	neighFlagsAt   = unix.SizeofNlMsghdr + 10
	netconfAttrsAt = unix.SizeofNlMsghdr + sizeofNetconfmsg
	// attrHeader is the size of the length and type before an attribute's value.
	attrHeader = unix.SizeofRtAttr
	// hostNameAttr is the length of an attribute with a host end's name.
	hostNameAttr = attrHeader + len(plug.HostPrefix) + plug.HostDigits + 1
)

// Labels of the filter's program: its two ends, and the parts that test one kind of
// message.
const (
	keep, drop, itsState                 = "keep", "drop", "state"
	aLink, itsName, aNeighbour, itsFlags = "link", "name", "neighbour", "flags"
	aRoute, settings, anAddress          = "route", "settings", "address"
)

// podFilter drops the messages that the kernel sends when pods come and go, two dozen for
// each, and keeps the rest for eventFilter. It drops messages
//
//   - about host ends;
//   - about ports, from a bridge;
//   - about links if only the features of their cards change;
//   - about the routes that come with addresses, and the gateway's address of host ends;
//   - about the routes and neighbours of pods;
//   - about the settings of a link that appears or goes, which has a message of its own;
//   - about neighbours that become known or are forgotten.
//
// It keeps neighbours that a program wrote, such as the tunnel's, and failed neighbours,
// such as those that are being deleted.
var podFilter = []link.Instruction{
	link.Load(unix.BPF_H, typeAt),
	link.IfEqual(link.Host16(unix.RTM_NEWLINK), aLink, ""),
	link.IfEqual(link.Host16(unix.RTM_DELLINK), aLink, ""),
	link.IfEqual(link.Host16(unix.RTM_NEWADDR), anAddress, ""),
	link.IfEqual(link.Host16(unix.RTM_DELADDR), anAddress, ""),
	link.IfEqual(link.Host16(unix.RTM_NEWROUTE), aRoute, ""),
	link.IfEqual(link.Host16(unix.RTM_DELROUTE), aRoute, ""),
	link.IfEqual(link.Host16(unix.RTM_NEWNEIGH), aNeighbour, ""),
	link.IfEqual(link.Host16(unix.RTM_DELNEIGH), aNeighbour, ""),
	link.IfEqual(link.Host16(unix.RTM_NEWNETCONF), settings, ""),
	link.IfEqual(link.Host16(unix.RTM_DELNETCONF), drop, keep),

	link.Load(unix.BPF_B, familyAt).At(aLink),
	link.IfEqual(unix.AF_BRIDGE, drop, ""),
	link.Set(linkAttrsAt), link.SetX(linkEvent), link.FindAttr(),
	link.IfEqual(0, itsName, ""),
	link.ToX(), link.LoadX(unix.BPF_W, attrHeader),
	link.IfEqual(link.Host32(eventFeatures), drop, ""),
	link.Set(linkAttrsAt).At(itsName), link.SetX(unix.IFLA_IFNAME), link.FindAttr(),
	link.IfEqual(0, keep, ""),
	link.ToX(), link.LoadX(unix.BPF_H, 0),
	link.IfEqual(link.Host16(uint16(hostNameAttr)), "", keep),
	link.LoadX(unix.BPF_H, attrHeader),
	link.IfEqual(uint32(plug.HostPrefix[0])<<8|uint32(plug.HostPrefix[1]), drop, keep),

	link.Load(unix.BPF_B, routeTableAt).At(aRoute),
	link.IfEqual(unix.RT_TABLE_LOCAL, drop, ""),
	link.Load(unix.BPF_B, routeProtoAt),
	link.IfEqual(routed.RouteProtocol, drop, ""),
	link.IfEqual(unix.RTPROT_KERNEL, "", keep),
	link.Load(unix.BPF_B, routePrefixAt),
	link.IfEqual(0, keep, drop),

	// No other program gives a link a link-local address alone.
	link.Load(unix.BPF_B, addrPrefixAt).At(anAddress),
	link.IfEqual(128, "", keep),
	link.Load(unix.BPF_B, addrScopeAt),
	link.IfEqual(unix.RT_SCOPE_LINK, drop, keep),

	link.Load(unix.BPF_B, familyAt).At(aNeighbour),
	link.IfEqual(unix.AF_BRIDGE, itsFlags, ""),
	link.Set(neighAttrsAt), link.SetX(neighProtocol), link.FindAttr(),
	link.IfEqual(0, itsState, ""),
	link.ToX(), link.LoadX(unix.BPF_B, attrHeader),
	link.IfEqual(routed.RouteProtocol, drop, ""),
	link.Load(unix.BPF_H, neighStateAt).At(itsState),
	link.IfAny(link.Host16(unix.NUD_PERMANENT|unix.NUD_FAILED), keep, drop),
	link.Load(unix.BPF_B, neighFlagsAt).At(itsFlags),
	link.IfAny(unix.NTF_SELF, keep, drop),

	// The kernel reports all settings at once, and this one among them, when a link
	// appears.
	link.Set(netconfAttrsAt).At(settings), link.SetX(netconfProxyNeigh), link.FindAttr(),
	link.IfEqual(0, keep, drop),

	link.End(-1).At(keep),
	link.End(0).At(drop),
}

// filterPods attaches podFilter to a socket: each message that the kernel delivers would
// wake the daemon while it plugs the next pod.
func filterPods(fd int) error {
	return link.Attach(fd, podFilter)
}
