package plug

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// LinkGroup is the group of the host ends of pods (ip-link(8)). The packet filter
// recognises host ends by it, even before it knows their pods.
const LinkGroup = 158

// pair describes a veth at its creation: one end in the host namespace as a port of the
// bridge, the other end in the sandbox under its final name. Moving the other end there
// later would take some 17 ms, in which the kernel changes no other link.
type pair struct {
	host      string
	hostMAC   net.HardwareAddr
	bridge    int   // index
	port      *Port // settings of the port, nil for those of the default network
	peer      string
	peerMAC   net.HardwareAddr
	mtu       int
	namespace int // file descriptor
}

func create(p pair) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(link.UpMessage())
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
	return link.Step{What: fmt.Sprintf("creating %s with its host end %s", p.peer, p.host), Req: req}
}

// oneQueue sets the number of queues to one, which is all that a veth uses. By default
// the kernel makes as many queues as the machine may have processors and then disables
// all but one, for which it waits for every processor once for each end
// (veth_init_queues, from Linux 5.15).
func oneQueue() []*nl.RtAttr {
	return []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
		nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
	}
}

// nameHost sets the alias of a host end, which the creation cannot set. It also keeps the
// kernel from making, testing and announcing a link-local address, which the port of a
// bridge does not need.
func nameHost(name, alias string, ipv6 bool) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	if ipv6 {
		req.AddData(link.NoLinkLocal())
	}
	return link.Step{What: "naming the owner of host end " + name, Req: req}
}

// ownHost names a host end and sets its port, in one message.
func ownHost(name, alias string, port *Port, ipv6 bool) link.Step {
	s := nameHost(name, alias, ipv6)
	s.Req.Type = unix.RTM_NEWLINK
	s.Req.AddData(portSettings(port))
	return s
}

// Reflect makes the bridge send frames back out of the port through which they came in
// (hairpin mode). A pod that reaches itself through a Service or a host port is bridged,
// not routed, if the packet filter sees bridged packets. That is the default as soon as
// the module br_netfilter is loaded.
func Reflect(index int) link.Step { return reflect(index, nil) }

// reflect is Reflect for a port whose settings may differ.
func reflect(index int, port *Port) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(portSettings(port))
	return link.Step{What: "having the bridge reflect frames", Req: req}
}

// portSettings returns the settings of a port, as Reflect describes them if port is nil.
// Only RTM_NEWLINK takes them together with other attributes of a link.
func portSettings(port *Port) *nl.RtAttr {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	if port == nil || !port.NoHairpin {
		data.AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	}
	if port != nil && port.Isolated {
		data.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, nl.Uint8Attr(1))
	}
	return info
}

// knowNeighbour writes the current MAC of an address into the host's neighbour table. The
// last pod with the address had another MAC, and the host would send to it for seconds
// until it asks again. The entry ages as if the host had asked. The step is optional, so
// pods start even if the kernel's table is full.
func knowNeighbour(bridge int, a netip.Addr, mac net.HardwareAddr) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	req.AddData(&netlink.Ndmsg{Family: uint8(link.Family(a)), Index: uint32(bridge), State: unix.NUD_REACHABLE})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, mac))
	return link.Step{What: "telling the host the MAC of " + a.String(), Req: req, Optional: true}
}
