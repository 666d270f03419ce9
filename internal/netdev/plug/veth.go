package plug

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// maxPlugging is how many interfaces are plugged at once. The kernel changes one link
// after the other (rtnl_mutex), so more than one at work and one ready are not faster.
// An interface that waits in the kernel keeps a thread and, for a while, a processor
// busy; here it keeps only a goroutine.
const maxPlugging = 2

// Veths makes and removes pairs of links. One end is the interface of a sandbox; the other,
// the host end, is on the host. The kinds of such interfaces embed it.
type Veths struct {
	*link.Sockets
	// plugging has an entry for each interface that is being plugged.
	plugging chan struct{}
	removals singleflight.Group // by name of the host end
}

// NewVeths returns Veths, over sockets on the host.
func NewVeths(s *link.Sockets) *Veths {
	return &Veths{Sockets: s, plugging: make(chan struct{}, maxPlugging)}
}

// Pair describes a veth at its creation: one end in the host namespace, which may be a port of a
// bridge, the other end in the sandbox under its final name. Moving the other end there
// later would take some 17 ms, in which the kernel changes no other link.
type Pair struct {
	Host    string
	HostMAC net.HardwareAddr
	Group   uint32
	Bridge  int // index; 0 for none
	// Peer, its MAC and MTU, and Namespace are those of the interface and its namespace.
	Peer      string
	PeerMAC   net.HardwareAddr
	MTU       int
	Namespace int // file descriptor
}

// begin waits for the turn to plug an interface; end ends the turn.
func (v *Veths) begin(ctx context.Context, name string) (end func(), err error) {
	select {
	case v.plugging <- struct{}{}:
		return func() { <-v.plugging }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to plug %s: %w", name, ctx.Err())
	}
}

// MakePair makes an interface, with both ends of its pair. prepare returns the pair, and may change
// the interface. onHost completes the host end, whose index it gets, before the interface is set
// up. On an error nothing is left.
func (v *Veths) MakePair(ctx context.Context, ns *link.Namespace, i Interface,
	prepare func(host *link.Conn, i *Interface) (Pair, error), onHost func(host *link.Conn, end int, i Interface, plan Pair) error,
) (err error) {
	if err := v.RefuseHost(ns); err != nil {
		return err
	}
	end, err := v.begin(ctx, i.Name)
	if err != nil {
		return err
	}
	defer end()
	host, err := v.Conn()
	if err != nil {
		return err
	}
	defer v.Release(host)
	plan, err := prepare(host, &i)
	if err != nil {
		return err
	}
	plan.Peer, plan.MTU, plan.Namespace, plan.PeerMAC = i.Name, i.MTU, ns.FD(), i.MAC
	if plan.PeerMAC == nil {
		plan.PeerMAC = RandomMAC()
	}
	created := false
	defer func() {
		if err != nil && (created || host.Broken()) { // broken: the pair may have been created
			err = errors.Join(err, v.detach(context.WithoutCancel(ctx), plan.Host))
		}
	}()
	go ns.Prepare() // while the kernel makes the pair
	if err := v.createPair(ctx, host, ns, plan); err != nil {
		return err
	}
	created = true
	index, err := host.Index(plan.Host)
	if err != nil {
		return err
	}
	if err := onHost(host, index, i, plan); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", i.Name, err)
	}
	if i.Bandwidth != nil {
		if err := v.shape(plan, i); err != nil {
			return err
		}
	}
	if err := Configure(ns, i); err != nil {
		return err
	}
	now, err := host.Index(plan.Host)
	if err == nil && now != index {
		err = fmt.Errorf("%w: host end %s was removed while %s was being plugged", link.ErrNoLink, plan.Host, i.Name)
	}
	return err
}

func create(p Pair) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(link.UpMessage())
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.Host)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, p.HostMAC))
	if p.Bridge != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(p.Bridge))))
	}
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(p.Group)))
	for _, a := range oneQueue() {
		req.AddData(a)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.Peer))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, p.PeerMAC)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(p.Namespace)))
	for _, a := range oneQueue() {
		peer.AddChild(a)
	}
	req.AddData(info)
	return link.Step{What: fmt.Sprintf("creating %s with its host end %s", p.Peer, p.Host), Req: req}
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

// reflect sets the settings of a port. As a rule the bridge sends frames back out of the port through
// which they came in (hairpin mode). A pod that reaches itself through a Service or a host port is bridged,
// not routed, if the packet filter sees bridged packets. That is the default as soon as
// the module br_netfilter is loaded.
func reflect(index int, port *Port) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(portSettings(port))
	return link.Step{What: "having the bridge reflect frames", Req: req}
}

// portSettings returns the settings of a port, as reflect describes them if port is nil.
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
