package netdev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostRoute is what matters of a route of ours on the host.
type hostRoute struct {
	destination netip.Prefix
	link        int
	via         netip.Addr // not valid: on the link
	source      netip.Addr // not valid: the kernel's choice
}

// applyRoutes makes the routes with our protocol number be those wanted.
func (r *hostRun) applyRoutes(ctx context.Context) {
	wanted, names := r.wantedRoutes()
	have, err := ourRoutes(ctx, r.host)
	if err != nil {
		r.failed(err)
		return
	}
	standing := map[netip.Prefix]bool{}
	for _, route := range have {
		is, ok := toHostRoute(route)
		if ok && wanted[is.destination] == is && !standing[is.destination] {
			standing[is.destination] = true
			continue
		}
		if r.uplink == 0 && r.want.Uplink != "" && ok && is.via.IsValid() {
			continue // to a peer
		}
		if err := deleteRoute(r.host, route); err != nil {
			r.failed(err)
			continue
		}
		r.changed("removed route %s", describe(route))
	}
	for _, destination := range names {
		if standing[destination] {
			continue
		}
		if err := r.addRoute(wanted[destination]); err != nil {
			r.failed(err)
			continue
		}
		r.changed("added route %s", r.describe(wanted[destination]))
	}
}

// wantedRoutes returns the routes by destination, and their order. Without an
// uplink those to peers are left as they are: they cannot be judged.
func (r *hostRun) wantedRoutes() (map[netip.Prefix]hostRoute, []netip.Prefix) {
	wanted := map[netip.Prefix]hostRoute{}
	var order []netip.Prefix
	add := func(route hostRoute) {
		if had, twice := wanted[route.destination]; twice {
			if had != route {
				r.failed(fmt.Errorf("%w: two routes wanted to %v: %s and %s", ErrInvalid, route.destination, r.describe(had), r.describe(route)))
			}
			return
		}
		wanted[route.destination] = route
		order = append(order, route.destination)
	}
	for _, b := range r.want.Local {
		add(hostRoute{destination: b.Prefix, link: r.bridge, source: b.Source})
	}
	if r.uplink != 0 {
		for _, b := range r.want.Peers {
			add(hostRoute{destination: b.Prefix, link: r.uplink, via: b.Via})
		}
	}
	return wanted, order
}

func (r *hostRun) addRoute(route hostRoute) error {
	n := &netlink.Route{
		LinkIndex: route.link, Dst: toIPNet(route.destination), Protocol: RouteProtocol,
		Table: unix.RT_TABLE_MAIN, Src: route.source.AsSlice(), Gw: route.via.AsSlice(),
	}
	if !route.via.IsValid() && route.destination.Addr().Is4() {
		n.Scope = netlink.SCOPE_LINK
	}
	err := r.host.RouteAdd(n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("adding route %s: a route to %v that is not ours is in its place: %s", r.describe(route), route.destination, r.inTheWay(route.destination))
	case errors.Is(err, unix.EINVAL) && route.source.IsValid():
		return fmt.Errorf("adding route %s (is %v an address of this node?): %w", r.describe(route), route.source, err)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("adding route %s (is %v on the link of %s?): %w", r.describe(route), route.via, r.want.Uplink, err)
	}
	return fmt.Errorf("adding route %s: %w", r.describe(route), err)
}

// inTheWay names the routes of others to the destination, for an error.
func (r *hostRun) inTheWay(destination netip.Prefix) string {
	routes, err := r.host.RouteListFiltered(family(destination.Addr()), &netlink.Route{Dst: toIPNet(destination)}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) == 0 {
		return "it went away meanwhile"
	}
	return describe(routes[0])
}

func (r *hostRun) describe(route hostRoute) string {
	s := "to " + route.destination.String()
	if route.via.IsValid() {
		s += " via " + route.via.String()
	}
	switch route.link {
	case r.bridge:
		s += " dev " + r.want.Bridge
	case r.uplink:
		s += " dev " + r.want.Uplink
	}
	return s
}

// describe says what the kernel's route is, for people.
func describe(route netlink.Route) string {
	s := "to everywhere"
	if p, ok := toPrefix(route.Dst); ok {
		s = "to " + p.String()
	}
	if route.Gw != nil {
		s += " via " + route.Gw.String()
	}
	return fmt.Sprintf("%s on link %d (protocol %d)", s, route.LinkIndex, route.Protocol)
}

// ourRoutes lists the routes of the main table that carry our number.
func ourRoutes(ctx context.Context, h *netlink.Handle) ([]netlink.Route, error) {
	var ours []netlink.Route
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := dump(ctx, "listing routes", func() ([]netlink.Route, error) {
			filter := &netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
			return h.RouteListFiltered(fam, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		ours = append(ours, routes...)
	}
	return ours, nil
}

func deleteRoute(h *netlink.Handle, route netlink.Route) error {
	if err := h.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing route %s: %w", describe(route), err)
	}
	return nil
}

// toHostRoute reads a route of the kernel; false when it has more to it than
// any route of ours.
func toHostRoute(route netlink.Route) (hostRoute, bool) {
	destination, ok := toPrefix(route.Dst)
	if !ok || route.Type != unix.RTN_UNICAST || len(route.MultiPath) > 0 {
		return hostRoute{}, false
	}
	via, _ := netip.AddrFromSlice(route.Gw)
	source, _ := netip.AddrFromSlice(route.Src)
	return hostRoute{destination: destination, link: route.LinkIndex, via: via.Unmap(), source: source.Unmap()}, true
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
