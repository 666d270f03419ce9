package netdev

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HostState is what the pod network needs on this node, whole.
type HostState struct {
	// Bridge is the name of the bridge that all pods are plugged into.
	Bridge string
	// MTU of the bridge in bytes; 0 takes the uplink's.
	MTU int
	// Gateways are the bridge's addresses: the gateways of every pod.
	Gateways []netip.Addr
	// Uplink is the interface that leads to the other nodes. It may be empty
	// on a node that has no peers.
	Uplink string
	// Local are the blocks of addresses whose pods run here.
	Local []LocalBlock
	// Peers are the blocks that are reached over the uplink's link.
	Peers []PeerBlock
	// Tunnel is this node's end of the tunnel; nil where it has none.
	Tunnel *Tunnel
	// Remote are the nodes that are reached through the tunnel.
	Remote []RemoteNode
}

// LocalBlock is a block of this node.
type LocalBlock struct {
	Prefix netip.Prefix
	// Source is the host's address that it talks to its pods from; not valid
	// leaves the choice to the kernel.
	Source netip.Addr
}

// PeerBlock is a block of another node.
type PeerBlock struct {
	Prefix netip.Prefix
	// Via is that node's address on the uplink's link.
	Via netip.Addr
}

// hostRun is one ApplyHost under way.
type hostRun struct {
	host   *netlink.Handle
	conn   *conn
	ipv6   bool // this kernel has it
	want   HostState
	bridge int // index
	uplink int // index, 0 without one

	tunnels tunnelLinks
	down    []string // links to set up

	changes []string
	errs    []error
}

func (r *hostRun) changed(format string, args ...any) {
	r.changes = append(r.changes, fmt.Sprintf(format, args...))
}

func (r *hostRun) failed(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// ApplyHost makes the node's network be as the state says: it adds what is
// missing, mends what differs, and removes what is ours and not wanted. It
// returns in words what it changed, nothing when all was well. What fails does
// not keep the rest from being done; only without a bridge nothing is. Routes
// and links of others are never touched, and a route of another program in the
// place of ours is an error that names it.
//
// On the way it turns on forwarding, for IPv4 only on the bridge, the uplink and
// the tunnel, keeps the uplink listening to router advertisements (accept_ra 2)
// when IPv6 forwarding would end that, and turns off redirects, which would make
// pods send past their gateway. Reverse path filters (rp_filter) stay as they
// are, as every route is symmetric; only the tunnel's is loose: other nodes send
// through it under addresses that are reached without it.
func (k *Kernel) ApplyHost(ctx context.Context, want HostState) (changes []string, err error) {
	if err := want.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoBridge, want.Bridge, err)
	}
	k.applying.Lock()
	defer k.applying.Unlock()
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	c, err := k.conn()
	if err != nil {
		return nil, err
	}
	defer k.release(c)

	r := &hostRun{host: h, conn: c, ipv6: k.ipv6, want: want}
	if err := r.findUplink(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoBridge, want.Bridge, err)
	}
	if err := r.applyBridge(); err != nil {
		return r.changes, fmt.Errorf("%w: %s: %w", ErrNoBridge, want.Bridge, err)
	}
	r.applyTunnel()
	k.watch(func(w *watched) {
		*w = watched{bridge: want.Bridge, bridgeIndex: r.bridge, uplink: want.Uplink, uplinkIndex: r.uplink, tunnels: r.tunnels}
	})
	r.failed(k.inHost(r.applySettings))
	for _, name := range r.down { // only now: settings say what they do when they come up
		r.mend(raise(name), "set %s up", name)
	}
	r.applyAddresses(ctx)
	r.adoptOrphans(ctx)
	r.applyNeighbours(ctx)
	r.applyRoutes(ctx)
	r.applyRules(ctx)
	return r.changes, errors.Join(r.errs...)
}

// Validate returns everything that is wrong with the state, as ErrInvalid.
func (s *HostState) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if err := checkName(s.Bridge); err != nil {
		bad("bridge name %q %s", s.Bridge, err)
	}
	if s.Uplink == "" && (len(s.Peers) > 0 || s.MTU == 0) {
		bad("the uplink must be named: it leads to %d blocks of other nodes and gives its mtu when %d is 0", len(s.Peers), s.MTU)
	}
	if s.MTU < 0 || s.MTU > maxMTU || s.MTU > 0 && s.MTU < minMTUv6 {
		bad("bridge mtu %d must be from %d to %d bytes, or 0 for the uplink's", s.MTU, minMTUv6, maxMTU)
	}
	for _, g := range s.Gateways {
		if !g.IsValid() || g.Is4In6() || g.Zone() != "" {
			bad("gateway %v must be a plain address", g)
		}
	}
	for _, b := range s.Local {
		if err := checkBlock(b.Prefix, b.Source); err != nil {
			bad("block %v of this node %s", b.Prefix, err)
		}
	}
	for _, err := range s.checkOthers() {
		bad("%w", err)
	}
	return errors.Join(errs...)
}

// checkOthers returns what is wrong with the ways to other nodes.
func (s *HostState) checkOthers() []error {
	var errs []error
	for _, b := range s.Peers {
		if err := checkBlock(b.Prefix, b.Via); err != nil {
			errs = append(errs, fmt.Errorf("block %v of another node %w", b.Prefix, err))
		} else if !b.Via.IsValid() {
			errs = append(errs, fmt.Errorf("block %v of another node must say which address it is reached by", b.Prefix))
		}
	}
	if err := s.Tunnel.validate(); err != nil {
		errs = append(errs, err)
	}
	if s.Tunnel == nil && len(s.Remote) > 0 {
		errs = append(errs, fmt.Errorf("%d nodes are behind a tunnel: it must be described", len(s.Remote)))
	}
	for _, n := range s.Remote {
		if err := n.validate(); err != nil {
			errs = append(errs, fmt.Errorf("node behind the tunnel: %w", err))
		}
	}
	return errs
}

func checkBlock(p netip.Prefix, with netip.Addr) error {
	switch {
	case !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() || p.Bits() == 0:
		return errors.New("must be in CIDR form without host bits, and less than everything")
	case with.IsValid() && with.Is4() != p.Addr().Is4():
		return fmt.Errorf("must go with an address of its own family, not %v", with)
	}
	return nil
}

// wants tells whether the state has anything of that kind.
func (s *HostState) wants(kind func(netip.Addr) bool) bool {
	return slices.ContainsFunc(s.Gateways, kind) ||
		slices.ContainsFunc(s.Local, func(b LocalBlock) bool { return kind(b.Prefix.Addr()) }) ||
		slices.ContainsFunc(s.Peers, func(b PeerBlock) bool { return kind(b.Prefix.Addr()) }) ||
		slices.ContainsFunc(s.Remote, func(n RemoteNode) bool {
			return slices.ContainsFunc(n.Blocks, func(b netip.Prefix) bool { return kind(b.Addr()) })
		})
}

// findUplink fills in what depends on the uplink. A missing uplink spoils only
// the routes to peers when the MTU is known without it.
func (r *hostRun) findUplink() error {
	if r.want.Uplink == "" {
		return nil
	}
	link, err := r.host.LinkByName(r.want.Uplink)
	switch {
	case isNoLink(err):
		err = fmt.Errorf("%w: uplink %s", ErrNoLink, r.want.Uplink)
	case err != nil:
		err = fmt.Errorf("looking at uplink %s: %w", r.want.Uplink, err)
	case link.Attrs().Flags&net.FlagUp == 0:
		err = fmt.Errorf("uplink %s is down", r.want.Uplink)
	default:
		r.uplink = link.Attrs().Index
	}
	if r.want.MTU != 0 {
		r.failed(err)
		return nil
	}
	if link == nil {
		return err
	}
	r.failed(err)
	r.want.MTU = link.Attrs().MTU
	return nil
}

// bridgeMAC is a local address made from the name. It is set so that it does
// not follow the ports: pods keep it in their neighbour tables.
func bridgeMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return append(net.HardwareAddr{0x0a, 0x58}, sum[:4]...)
}

func (r *hostRun) applyBridge() error {
	name, mac := r.want.Bridge, bridgeMAC(r.want.Bridge)
	link, err := r.host.LinkByName(name)
	if isNoLink(err) {
		if err := r.conn.do(createBridge(name, mac, r.want.MTU, r.ipv6)...); err != nil {
			return err
		}
		r.changed("created bridge %s (mac %s, mtu %d)", name, mac, r.want.MTU)
		r.down = append(r.down, name)
		r.bridge, err = r.conn.index(name)
		return err
	}
	if err != nil {
		return fmt.Errorf("looking at bridge %s: %w", name, err)
	}
	a := link.Attrs()
	if link.Type() != "bridge" || a.Alias != "" && a.Alias != bridgeAlias {
		return fmt.Errorf("%w: %s is a %s that is not ours (alias %q, not %q)", ErrExists, name, link.Type(), a.Alias, bridgeAlias)
	}
	r.bridge = a.Index
	if a.Alias == "" {
		r.mend(setLink(name, "alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(bridgeAlias))), "marked bridge %s as ours", name)
	}
	if a.MTU != r.want.MTU {
		r.mend(setLink(name, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(r.want.MTU)))),
			"set the mtu of %s from %d to %d", name, a.MTU, r.want.MTU)
	}
	if a.HardwareAddr.String() != mac.String() {
		r.mend(setLink(name, "mac", nl.NewRtAttr(unix.IFLA_ADDRESS, mac)), "set the mac of %s from %s to %s", name, a.HardwareAddr, mac)
	}
	if a.Flags&net.FlagUp == 0 {
		r.down = append(r.down, name)
	}
	return nil
}

// mend does the step and says so.
func (r *hostRun) mend(s step, format string, args ...any) {
	if err := r.conn.do(s); err != nil {
		r.failed(err)
		return
	}
	r.changed(format, args...)
}

// applyAddresses makes the bridge have the gateways' addresses and the tunnel's
// interfaces those of the node, which is what masquerading takes for the source
// of what leaves through them.
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

// applyAddressesOf makes a link have these addresses and no others. The
// link-local IPv6 address that the kernel makes itself may stay.
func (r *hostRun) applyAddressesOf(ctx context.Context, name string, index int, addresses []netip.Prefix) {
	missing := map[netip.Prefix]bool{}
	for _, p := range addresses {
		missing[p] = true
	}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	have, err := dump(ctx, "listing the addresses of "+name, func() ([]netlink.Addr, error) {
		return r.host.AddrList(link, netlink.FAMILY_ALL)
	})
	if err != nil {
		r.failed(err)
		return
	}
	for _, a := range have {
		p, ok := toPrefix(a.IPNet)
		if !ok || missing[p] {
			delete(missing, p)
			continue
		}
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := r.host.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
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
			scope = netlink.SCOPE_LINK // never the source of what leaves the node
		}
		r.mend(addAddress(index, p, scope), "added address %v to %s", p, name)
	}
}

// gatewayPrefix is the length that a gateway's address has on the bridge.
func gatewayPrefix(g netip.Addr) netip.Prefix {
	if g.Is6() && g.IsLinkLocalUnicast() {
		return netip.PrefixFrom(g, 64)
	}
	return netip.PrefixFrom(g, g.BitLen())
}

// adoptOrphans puts host ends back that lost their bridge when it was removed.
func (r *hostRun) adoptOrphans(ctx context.Context) {
	all, err := dump(ctx, "listing links", r.host.LinkList)
	if err != nil {
		r.failed(err)
		return
	}
	for _, link := range all {
		l, ok := hostLink(link)
		if !ok || l.ContainerID == "" || l.Master != 0 {
			continue // without an alias it may be being made just now
		}
		err := r.host.LinkSetMasterByIndex(link, r.bridge)
		if err == nil {
			err = r.conn.do(reflect(l.Index)) // the bridge took that with it
		}
		switch {
		case isNoLink(err): // it is on its way out
		case err != nil:
			r.failed(fmt.Errorf("putting %s back on %s: %w", l.Name, r.want.Bridge, err))
		default:
			r.changed("put %s of container %s back on %s", l.Name, l.ContainerID, r.want.Bridge)
		}
	}
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if bits == 32 {
		ip = ip.Unmap()
	}
	return netip.PrefixFrom(ip, ones), true
}
