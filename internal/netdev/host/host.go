// Package host configures the node's own part of the pod network from a State, and
// watches it: the tunnel, the routes to the blocks of addresses, and the settings of links.
//
// Its objects on a host carry the marks of package plug, which distinguish them from
// those of other programs. The package keeps no state beyond open sockets and the names
// of the watched links.
package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Kernel configures the node's own part of the pod network. Its methods may be called
// concurrently.
type Kernel struct {
	*link.Sockets

	applying sync.Mutex // one ApplyHost or CleanupHost at a time
	sources  atomic.Pointer[[]netip.Addr]

	mu      sync.Mutex
	watched watched
}

// New returns a Kernel over sockets on the host.
func New(s *link.Sockets) *Kernel { return &Kernel{Sockets: s} }

// Source returns the address of a family from which the host sends to its pods, by the last ApplyHost.
// It is invalid before, and if the kernel chooses.
func (k *Kernel) Source(is4 bool) netip.Addr {
	if sources := k.sources.Load(); sources != nil {
		for _, a := range *sources {
			if a.Is4() == is4 {
				return a
			}
		}
	}
	return netip.Addr{}
}

// State describes the node's own part of the pod network completely.
type State struct {
	// IPv4 and IPv6 are true if pods of any node have addresses of the family.
	IPv4, IPv6 bool
	// Uplink is the interface that leads to the other nodes. It may be empty on a node
	// without peers.
	Uplink string
	// Sources are the addresses from which the host sends to its pods, at most one of each
	// family. Without one of IPv4 the host sends from 192.0.0.8; the kernel chooses one of IPv6.
	Sources []netip.Addr
	// Local are the blocks whose pods run on this node.
	Local []netip.Prefix
	// Peers are the blocks that are reached by the uplink without the tunnel.
	Peers []PeerBlock
	// Tunnel is this node's end of the tunnel; nil without a tunnel.
	Tunnel *Tunnel
	// Remote are the nodes that are reached through the tunnel.
	Remote []RemoteNode
	// Loose means that packets of pods may arrive by the uplink from nodes that are
	// reached through the tunnel.
	Loose bool
}

// PeerBlock is a block of another node.
type PeerBlock struct {
	Prefix netip.Prefix
	// Via is the node's address on the uplink's link, or that of a gateway there.
	Via netip.Addr
}

// hostRun is a running ApplyHost.
type hostRun struct {
	host   *netlink.Handle
	conn   *link.Conn
	ipv6   bool // this kernel has IPv6
	want   State
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

// ApplyHost makes the node's network match the state: it adds missing objects, corrects
// differing ones, and removes those of Fairlead that are not wanted. It returns
// descriptions of the changes, none if there was nothing to change. It continues after an
// error. It never touches routes and links of others. If a
// route of another program is in the place of a wanted one, the error names it.
//
// ApplyHost also turns on forwarding, for IPv4 only on host ends, the uplink and the
// tunnel. It lets the uplink accept router advertisements (accept_ra 2) if IPv6
// forwarding would end that. It turns off redirects, which would make pods send past
// their gateway. Reverse path filters (rp_filter) stay as they are, because every route
// is symmetric. Only the tunnel's filter is loose: other nodes send through it from
// addresses that are reached without it. The uplink's becomes loose, and remains so, if
// the state is Loose.
func (k *Kernel) ApplyHost(ctx context.Context, want State) (changes []string, err error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	k.applying.Lock()
	defer k.applying.Unlock()
	h, err := k.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	c, err := k.Conn()
	if err != nil {
		return nil, err
	}
	defer k.Release(c)

	r := &hostRun{host: h, conn: c, ipv6: k.IPv6, want: want}
	r.findUplink()
	r.removeFormer(ctx)
	r.applyTunnel()
	k.sources.Store(r.applySources())
	k.watch(func(w *watched) {
		*w = watched{uplink: want.Uplink, uplinkIndex: r.uplink, tunnels: r.tunnels}
	})
	r.failed(k.In(r.applySettings))
	for _, name := range r.down { // after the settings, which a link applies when it comes up
		r.repair(link.Raise(name), "set %s up", name)
	}
	r.applyAddresses(ctx)
	r.applyNeighbours(ctx)
	r.applyRoutes(ctx)
	r.applyRules(ctx)
	return r.changes, errors.Join(r.errs...)
}

// Validate returns all errors of the state. Errors: link.ErrInvalid.
func (s *State) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{link.ErrInvalid}, args...)...))
	}
	if s.Uplink == "" && len(s.Peers) > 0 {
		bad("the uplink must be named: it leads to %d blocks of other nodes", len(s.Peers))
	}
	for _, b := range s.Local {
		if err := checkBlock(b, netip.Addr{}); err != nil {
			bad("block %v of this node %s", b, err)
		}
	}
	for _, err := range s.checkOthers() {
		bad("%w", err)
	}
	return errors.Join(errs...)
}

// checkOthers returns the errors of the routes to other nodes.
func (s *State) checkOthers() []error {
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

// findUplink finds the uplink. If it is missing only the routes to peers fail.
func (r *hostRun) findUplink() {
	if r.want.Uplink == "" {
		return
	}
	dev, err := r.host.LinkByName(r.want.Uplink)
	switch {
	case link.IsNoLink(err):
		r.failed(fmt.Errorf("%w: uplink %s", link.ErrNoLink, r.want.Uplink))
	case err != nil:
		r.failed(fmt.Errorf("looking at uplink %s: %w", r.want.Uplink, err))
	case dev.Attrs().Flags&net.FlagUp == 0:
		r.failed(fmt.Errorf("uplink %s is down", r.want.Uplink))
	default:
		r.uplink = dev.Attrs().Index
	}
}

// repair does a step and notes the change.
func (r *hostRun) repair(s link.Step, format string, args ...any) {
	if err := r.conn.Do(s); err != nil {
		r.failed(err)
		return
	}
	r.changed(format, args...)
}
