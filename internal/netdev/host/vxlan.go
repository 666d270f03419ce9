package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// ErrNoTunnel means that this node's end of the tunnel could not be made, or only in
// part.
var ErrNoTunnel = errors.New("no tunnel")

const (
	tunnelPrefix = "fairlead-vx" // then the IP version of the underlay
	tunnelAlias  = link.AliasPrefix + "tunnel"
	maxVNI       = 1<<24 - 1 // RFC 7348 section 5
)

// Tunnel is this node's end of the VXLAN (RFC 7348) to other nodes. It neither learns
// addresses nor floods: it sends only to the nodes of State.Remote. The kernel needs an
// interface for each family of the underlay.
type Tunnel struct {
	// VNI is the network's number, 1 to 16777215.
	VNI int
	// Port is the UDP port of the tunnel on all nodes.
	Port int
	// MAC of this end.
	MAC net.HardwareAddr
	// Underlay are the addresses of this node from which the tunnel sends, at most one
	// per family.
	Underlay []netip.Addr
	// MTU of the underlay in bytes.
	MTU int
}

// RemoteNode is a node that is reached through the tunnel.
type RemoteNode struct {
	// Underlay is the node's own address, to which the tunnel sends. Packets from pods
	// here to this address go through the tunnel too: the node's packets to pods come
	// through it, and the replies have to take the same way.
	Underlay netip.Addr
	// MAC of the node's end.
	MAC net.HardwareAddr
	// Blocks are the addresses of its pods, of both families.
	Blocks []netip.Prefix
}

// TunnelOverhead returns how much the tunnel adds to a packet on an underlay of the
// address' family, in bytes: its IP header, UDP, VXLAN and the Ethernet header inside
// (RFC 7348 section 5).
func TunnelOverhead(underlay netip.Addr) int {
	const udp, vxlan, ethernet = 8, 8, 14
	if underlay.Is4() {
		return 20 + udp + vxlan + ethernet
	}
	return 40 + udp + vxlan + ethernet
}

// TunnelMAC returns the MAC of a node's end of the tunnel: a local address made from the
// node's name, so that it outlives daemon and machine.
func TunnelMAC(node string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("fairlead tunnel of " + node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// CheckTunnelMAC returns an error if the MAC of another node's end is invalid.
func CheckTunnelMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return fmt.Errorf("must be the MAC of one station, not %q", mac)
	}
	return nil
}

// TunnelLink returns the name of the tunnel's interface for an underlay of the address'
// family.
func TunnelLink(underlay netip.Addr) string { return tunnelName(underlay) }

func tunnelName(underlay netip.Addr) string {
	if underlay.Is4() {
		return tunnelPrefix + "4"
	}
	return tunnelPrefix + "6"
}

func isTunnelName(name string) bool { return strings.HasPrefix(name, tunnelPrefix) }

func (t *Tunnel) validate() error {
	if t == nil {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("tunnel "+format, args...)) }
	if t.VNI < 1 || t.VNI > maxVNI {
		bad("vni %d must be from 1 to %d", t.VNI, maxVNI)
	}
	if t.Port < 1 || t.Port > 65535 {
		bad("port %d must be from 1 to 65535", t.Port)
	}
	if err := CheckTunnelMAC(t.MAC); err != nil {
		bad("mac %w", err)
	}
	seen := map[string]bool{}
	for _, a := range t.Underlay {
		switch {
		case !a.IsValid() || a.Is4In6() || a.Zone() != "":
			bad("underlay address %v must be a plain address", a)
		case seen[tunnelName(a)]:
			bad("underlay address %v must be the only one of its family", a)
		case t.MTU-TunnelOverhead(a) < link.MinMTUv6:
			bad("underlay mtu %d must be at least %d bytes to carry packets of %d", t.MTU, link.MinMTUv6+TunnelOverhead(a), link.MinMTUv6)
		}
		seen[tunnelName(a)] = true
	}
	return errors.Join(errs...)
}

func (n RemoteNode) validate() error {
	if !n.Underlay.IsValid() || n.Underlay.Is4In6() || n.Underlay.Zone() != "" {
		return fmt.Errorf("underlay address %v must be a plain address", n.Underlay)
	}
	if err := CheckTunnelMAC(n.MAC); err != nil {
		return fmt.Errorf("mac %w", err)
	}
	for _, b := range n.Blocks {
		if err := checkBlock(b, netip.Addr{}); err != nil {
			return fmt.Errorf("block %v %w", b, err)
		}
	}
	return nil
}

// nextHop returns the address to which the tunnel sends a packet of a family. It is on no
// link and in no table: only Fairlead's routes and neighbour entries use it. An IPv4
// route over an IPv6 underlay has an IPv6 gateway (RFC 8950).
func (n RemoteNode) nextHop(of netip.Addr) netip.Addr {
	if of.Is4() && n.Underlay.Is4() {
		return n.Underlay
	}
	m := n.MAC // RFC 4291 appendix A
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5],
	})
}

// tunnelLinks are the interfaces of the tunnel by the family of their underlay.
type tunnelLinks struct{ index4, index6 int }

func (t tunnelLinks) index(underlay netip.Addr) int {
	if underlay.Is4() {
		return t.index4
	}
	return t.index6
}

func (t tunnelLinks) has(index int) bool {
	return index != 0 && (index == t.index4 || index == t.index6)
}

// applyTunnel makes the interfaces of the tunnel as wanted, but does not set them up.
func (r *hostRun) applyTunnel() {
	wanted := map[string]bool{}
	if t := r.want.Tunnel; t != nil {
		for _, a := range t.Underlay {
			wanted[tunnelName(a)] = true
			index, err := r.applyTunnelLink(t, a)
			if err != nil {
				r.failed(fmt.Errorf("%w: %s: %w", ErrNoTunnel, tunnelName(a), err))
				continue
			}
			if a.Is4() {
				r.tunnels.index4 = index
			} else {
				r.tunnels.index6 = index
			}
		}
	}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		name := tunnelName(a)
		if wanted[name] {
			continue
		}
		dev, err := r.host.LinkByName(name)
		if link.IsNoLink(err) || err == nil && dev.Attrs().Alias != tunnelAlias {
			continue
		}
		if err != nil {
			r.failed(fmt.Errorf("looking at %s: %w", name, err))
			continue
		}
		r.repair(link.Remove(name), "removed %s", name)
	}
}

// applyTunnelLink makes one interface of the tunnel and returns its index. If the
// kernel cannot change an interface in place, it is made anew.
func (r *hostRun) applyTunnelLink(t *Tunnel, from netip.Addr) (int, error) {
	name, mtu := tunnelName(from), t.MTU-TunnelOverhead(from)
	dev, err := r.host.LinkByName(name)
	switch {
	case link.IsNoLink(err):
		return r.createTunnelLink(t, from)
	case err != nil:
		return 0, fmt.Errorf("looking at it: %w", err)
	}
	a := dev.Attrs()
	vxlan, ok := dev.(*netlink.Vxlan)
	if !ok || a.Alias != "" && a.Alias != tunnelAlias {
		return 0, fmt.Errorf("%w: it is a %s that is not ours (alias %q, not %q)", link.ErrExists, dev.Type(), a.Alias, tunnelAlias)
	}
	if source, _ := netip.AddrFromSlice(vxlan.SrcAddr); source != from || vxlan.VxlanId != t.VNI || vxlan.Port != t.Port ||
		vxlan.Learning || vxlan.FlowBased || vxlan.Group != nil || vxlan.VtepDevIndex != 0 {
		if err := r.conn.Do(link.Remove(name)); err != nil {
			return 0, err
		}
		r.changed("removed %s, which was vni %d from %v to port %d", name, vxlan.VxlanId, source, vxlan.Port)
		return r.createTunnelLink(t, from)
	}
	if a.Alias == "" {
		r.repair(link.SetLink(name, "alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(tunnelAlias))), "marked %s as ours", name)
	}
	if a.MTU != mtu {
		r.repair(link.SetLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))), "set the mtu of %s from %d to %d", name, a.MTU, mtu)
	}
	if a.HardwareAddr.String() != t.MAC.String() {
		r.repair(link.SetLink(name, "mac", nl.NewRtAttr(unix.IFLA_ADDRESS, t.MAC)), "set the mac of %s from %s to %s", name, a.HardwareAddr, t.MAC)
	}
	if a.Flags&net.FlagUp == 0 {
		r.down = append(r.down, name)
	}
	return a.Index, nil
}

func (r *hostRun) createTunnelLink(t *Tunnel, from netip.Addr) (int, error) {
	name := tunnelName(from)
	if err := r.conn.Do(createTunnel(t, from, r.ipv6)...); err != nil {
		return 0, err
	}
	r.changed("created %s (vni %d from %v to port %d, mac %s, mtu %d)", name, t.VNI, from, t.Port, t.MAC, t.MTU-TunnelOverhead(from))
	r.down = append(r.down, name)
	return r.conn.Index(name)
}

// createTunnel returns the steps that make an interface of the tunnel with the alias of
// Fairlead, down. It has no default destination: a packet without an entry is dropped.
func createTunnel(t *Tunnel, from netip.Addr, ipv6 bool) []link.Step {
	name := tunnelName(from)
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, t.MAC))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(t.MTU-TunnelOverhead(from)))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(t.VNI)))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, uint16(t.Port)))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
	local := nl.IFLA_VXLAN_LOCAL
	if from.Is6() {
		local = nl.IFLA_VXLAN_LOCAL6
	}
	data.AddRtAttr(local, from.AsSlice())
	req.AddData(info)
	steps := []link.Step{
		{What: "creating " + name, Req: req},
		link.SetLink(name, "alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(tunnelAlias))),
	}
	if ipv6 {
		steps = append(steps, link.SetLink(name, "way to make addresses", link.NoLinkLocal()))
	}
	return steps
}

// neighbour is an entry of Fairlead on an interface of the tunnel. A forwarding entry
// maps the MAC to an underlay address, any other maps a next hop to the MAC.
type neighbour struct {
	link       int
	address    netip.Addr
	mac        [6]byte
	forwarding bool
}

func (n neighbour) String() string {
	if n.forwarding {
		return fmt.Sprintf("%s behind %v", net.HardwareAddr(n.mac[:]), n.address)
	}
	return fmt.Sprintf("%v at %s", n.address, net.HardwareAddr(n.mac[:]))
}

func (n neighbour) message() *netlink.Ndmsg {
	if n.forwarding {
		return &netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(n.link), State: unix.NUD_PERMANENT, Flags: unix.NTF_SELF}
	}
	return &netlink.Ndmsg{Family: uint8(link.Family(n.address)), Index: uint32(n.link), State: unix.NUD_PERMANENT}
}

func (n neighbour) step(what string, kind, flags int) link.Step {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(n.message())
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.address.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	return link.Step{What: what + " neighbour " + n.String(), Req: req}
}

// applyNeighbours makes the entries on the tunnel's interfaces match the remote nodes.
func (r *hostRun) applyNeighbours(ctx context.Context) {
	if r.want.Tunnel == nil {
		return // they went with the interfaces
	}
	wanted, order := map[neighbour]bool{}, []neighbour(nil)
	want := func(n neighbour) {
		if !wanted[n] {
			wanted[n], order = true, append(order, n)
		}
	}
	for _, node := range r.want.Remote {
		link := r.tunnels.index(node.Underlay)
		if link == 0 {
			continue
		}
		mac := [6]byte(node.MAC)
		want(neighbour{link: link, address: node.Underlay, mac: mac, forwarding: true})
		want(neighbour{link: link, address: node.nextHop(node.Underlay), mac: mac})
		for _, b := range node.Blocks {
			want(neighbour{link: link, address: node.nextHop(b.Addr()), mac: mac})
		}
	}
	have, err := r.neighbours(ctx)
	if err != nil {
		r.failed(err)
		return
	}
	for n := range have {
		if !wanted[n] {
			r.repair(n.step("removing", unix.RTM_DELNEIGH, 0), "removed neighbour %v", n)
		}
	}
	for _, n := range order {
		if !have[n] {
			r.repair(n.step("adding", unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE), "added neighbour %v", n)
		}
	}
}

// neighbours lists the permanent entries on the tunnel's interfaces.
func (r *hostRun) neighbours(ctx context.Context) (map[neighbour]bool, error) {
	have := map[neighbour]bool{}
	families := []int{unix.AF_INET, unix.AF_BRIDGE}
	if r.ipv6 {
		families = append(families, unix.AF_INET6)
	}
	for _, fam := range families {
		all, err := link.Dump(ctx, "listing neighbours", func() ([]netlink.Neigh, error) { return r.host.NeighList(0, fam) })
		if err != nil {
			return nil, err
		}
		for _, n := range all {
			address, ok := netip.AddrFromSlice(n.IP)
			if !ok || len(n.HardwareAddr) != 6 || !r.tunnels.has(n.LinkIndex) || n.State&unix.NUD_PERMANENT == 0 {
				continue
			}
			have[neighbour{
				link: n.LinkIndex, address: address.Unmap(), mac: [6]byte(n.HardwareAddr), forwarding: fam == unix.AF_BRIDGE,
			}] = true
		}
	}
	return have, nil
}
