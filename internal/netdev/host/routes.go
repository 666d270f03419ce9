package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
)

const (
	// tunnelTable is the routing table for packets from pods to the nodes behind the
	// tunnel. Numbers up to 255 are in the head of a routing message, by which the watch
	// filters.
	tunnelTable = 158
	// tunnelPriority of the rule for tunnelTable comes before the main table's.
	tunnelPriority = 15800
	// ownPriority comes before that.
	ownPriority = 15799
	// loopback is the index of lo in every namespace.
	loopback = 1
)

// hostRoute is a route of Fairlead on the host.
type hostRoute struct {
	place
	link   int        // 0: none, the destination is unreachable
	via    netip.Addr // not valid: on the link
	source netip.Addr // not valid: the kernel's choice
}

// place identifies a route: a table has at most one route of Fairlead for a destination.
type place struct {
	table       int
	destination netip.Prefix
}

// applyRoutes makes the routes with Fairlead's protocol number match the wanted routes.
func (r *hostRun) applyRoutes(ctx context.Context) {
	wanted, order := r.wantedRoutes()
	have, err := ourRoutes(ctx, r.host)
	if err != nil {
		r.failed(err)
		return
	}
	standing := map[place]bool{}
	for _, route := range have {
		is, ok := toHostRoute(route)
		if ok && wanted[is.place] == is && !standing[is.place] {
			standing[is.place] = true
			continue
		}
		if r.uplink == 0 && r.want.Uplink != "" && ok && is.via.IsValid() {
			continue // its link may be the missing uplink
		}
		if err := deleteRoute(r.host, route); err != nil {
			r.failed(err)
			continue
		}
		r.changed("removed route %s", describe(route))
	}
	for _, at := range order {
		if standing[at] {
			continue
		}
		if err := r.addRoute(wanted[at]); err != nil {
			r.failed(err)
			continue
		}
		r.changed("added route %s", r.describe(wanted[at]))
	}
}

// wantedRoutes returns the wanted routes by their place, and their order. It omits the
// routes to peers if there is no uplink: applyRoutes then leaves them as they are.
func (r *hostRun) wantedRoutes() (map[place]hostRoute, []place) {
	wanted := map[place]hostRoute{}
	var order []place
	add := func(table int, destination netip.Prefix, route hostRoute) {
		route.place = place{table: table, destination: destination}
		if had, twice := wanted[route.place]; twice {
			if had != route {
				r.failed(fmt.Errorf("%w: two routes wanted to %v: %s and %s", link.ErrInvalid, destination, r.describe(had), r.describe(route)))
			}
			return
		}
		wanted[route.place] = route
		order = append(order, route.place)
	}
	for _, b := range r.want.Local {
		add(unix.RT_TABLE_MAIN, b, hostRoute{}) // the routes to pods are longer
	}
	if r.want.IPv4 { // for which the kernel answers on host ends
		add(unix.RT_TABLE_MAIN, netip.PrefixFrom(routed.GatewayV4, routed.GatewayV4.BitLen()), hostRoute{link: loopback})
	}
	if r.uplink != 0 {
		for _, b := range r.want.Peers {
			add(unix.RT_TABLE_MAIN, b.Prefix, hostRoute{link: r.uplink, via: b.Via})
		}
	}
	for _, n := range r.want.Remote {
		link := r.tunnels.index(n.Underlay)
		if link == 0 {
			continue
		}
		for _, b := range n.Blocks {
			add(unix.RT_TABLE_MAIN, b, hostRoute{link: link, via: n.nextHop(b.Addr()), source: r.want.Tunnel.source(b.Addr())})
		}
		add(tunnelTable, netip.PrefixFrom(n.Underlay, n.Underlay.BitLen()), hostRoute{link: link, via: n.nextHop(n.Underlay)})
	}
	return wanted, order
}

// source returns the node's source address for packets to a family, an invalid one if
// there is none.
func (t *Tunnel) source(to netip.Addr) netip.Addr {
	for _, a := range t.Underlay {
		if a.Is4() == to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (r *hostRun) addRoute(route hostRoute) error {
	n := &netlink.Route{
		LinkIndex: route.link, Dst: link.ToIPNet(route.destination), Protocol: link.RouteProtocol,
		Table: route.table, Src: route.source.AsSlice(),
	}
	switch {
	case route.link == 0:
		n.Type = unix.RTN_UNREACHABLE
	case route.via.IsValid() && route.via.Is4() != route.destination.Addr().Is4():
		n.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: route.via.AsSlice()}
	case route.via.IsValid():
		n.Gw = route.via.AsSlice()
	case route.destination.Addr().Is4():
		n.Scope = netlink.SCOPE_LINK
	}
	if r.tunnels.has(route.link) {
		n.Flags = unix.RTNH_F_ONLINK
	}
	err := r.host.RouteAdd(n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("adding route %s: a route to %v that is not ours is in its place: %s", r.describe(route), route.destination, r.inTheWay(route.place))
	case errors.Is(err, unix.EINVAL) && route.source.IsValid():
		return fmt.Errorf("adding route %s (is %v an address of this node?): %w", r.describe(route), route.source, err)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("adding route %s (is %v on the link of %s?): %w", r.describe(route), route.via, r.want.Uplink, err)
	}
	return fmt.Errorf("adding route %s: %w", r.describe(route), err)
}

// inTheWay describes the route of another program in a place that is wanted.
func (r *hostRun) inTheWay(at place) string {
	filter := &netlink.Route{Dst: link.ToIPNet(at.destination), Table: at.table}
	routes, err := r.host.RouteListFiltered(link.Family(at.destination.Addr()), filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
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
	case 0:
		s += " unreachable"
	case loopback:
		s += " dev lo"
	case r.uplink:
		s += " dev " + r.want.Uplink
	case r.tunnels.index4:
		s += " dev " + tunnelPrefix + "4"
	case r.tunnels.index6:
		s += " dev " + tunnelPrefix + "6"
	}
	if route.table == tunnelTable {
		s += " for pods"
	}
	return s
}

// describe returns a description of a route of the kernel.
func describe(route netlink.Route) string {
	s := "to everywhere"
	if p, ok := link.ToPrefix(route.Dst); ok {
		s = "to " + p.String()
	}
	if via := gatewayOf(route); via.IsValid() {
		s += " via " + via.String()
	}
	return fmt.Sprintf("%s on link %d (protocol %d)", s, route.LinkIndex, route.Protocol)
}

// ourRoutes lists the routes with Fairlead's protocol number in the main table and in
// tunnelTable.
func ourRoutes(ctx context.Context, h *netlink.Handle) ([]netlink.Route, error) {
	var ours []netlink.Route
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := link.Dump(ctx, "listing routes", func() ([]netlink.Route, error) {
			// Without a table in the filter, the library lists only the main table.
			filter := &netlink.Route{Protocol: link.RouteProtocol, Table: unix.RT_TABLE_UNSPEC}
			return h.RouteListFiltered(fam, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_MAIN || r.Table == tunnelTable {
				ours = append(ours, r)
			}
		}
	}
	return ours, nil
}

func deleteRoute(h *netlink.Handle, route netlink.Route) error {
	if err := h.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing route %s: %w", describe(route), err)
	}
	return nil
}

// toHostRoute converts a route of the kernel. It returns false if the route has
// attributes that no route of Fairlead has.
func toHostRoute(route netlink.Route) (hostRoute, bool) {
	destination, ok := link.ToPrefix(route.Dst)
	if ok && route.Type == unix.RTN_UNREACHABLE {
		return hostRoute{place: place{table: route.Table, destination: destination}}, true
	}
	if !ok || route.Type != unix.RTN_UNICAST || len(route.MultiPath) > 0 {
		return hostRoute{}, false
	}
	source, _ := netip.AddrFromSlice(route.Src)
	return hostRoute{
		place: place{table: route.Table, destination: destination},
		link:  route.LinkIndex, via: gatewayOf(route), source: source.Unmap(),
	}, true
}

func gatewayOf(route netlink.Route) netip.Addr {
	ip := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok {
		ip = via.Addr
	}
	gateway, _ := netip.AddrFromSlice(ip)
	return gateway.Unmap()
}

// podRule is a rule for packets from a block. A rule cannot name a group of links.
type podRule struct {
	from netip.Prefix
	// own is true for the packets of the node itself, as those by which it probes the direct way.
	own bool
}

// rule returns the rule of the kernel: pods use tunnelTable before the main table, the node does not.
func (p podRule) rule() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = link.Family(p.from.Addr()), tunnelPriority, tunnelTable
	rule.Src, rule.Protocol = link.ToIPNet(p.from), link.RouteProtocol
	if p.own {
		rule.IifName, rule.Priority, rule.Table = "lo", ownPriority, unix.RT_TABLE_MAIN
	}
	return rule
}

// wantedRules returns the rules for the blocks of each family with an entry in tunnelTable.
func (r *hostRun) wantedRules() (rules []podRule) {
	families := map[int]bool{}
	for _, n := range r.want.Remote {
		if r.tunnels.index(n.Underlay) != 0 {
			families[link.Family(n.Underlay)] = true
		}
	}
	for _, b := range r.want.Local {
		if families[link.Family(b.Addr())] {
			rules = append(rules, podRule{b, true}, podRule{b, false})
		}
	}
	return rules
}

// applyRules makes the routing rules of Fairlead match the wanted ones.
func (r *hostRun) applyRules(ctx context.Context) {
	wanted := r.wantedRules()
	have, err := ourRules(ctx, r.host)
	if err != nil {
		r.failed(err)
		return
	}
	for _, rule := range have {
		is := podRule{own: rule.IifName == "lo"}
		is.from, _ = link.ToPrefix(rule.Src)
		if i := slices.Index(wanted, is); i >= 0 {
			if want := is.rule(); rule.IifName == want.IifName && rule.Priority == want.Priority && rule.Table == want.Table {
				wanted = slices.Delete(wanted, i, i+1)
				continue
			}
		}
		if err := deleteRule(r.host, rule); err != nil {
			r.failed(err)
			continue
		}
		r.changed("removed %s", describeRule(rule))
	}
	for _, w := range wanted {
		rule := w.rule()
		if err := r.host.RuleAdd(rule); err != nil {
			r.failed(fmt.Errorf("adding %s: %w", describeRule(*rule), err))
			continue
		}
		r.changed("added %s", describeRule(*rule))
	}
}

// ourRules lists the rules with Fairlead's protocol number.
func ourRules(ctx context.Context, h *netlink.Handle) ([]netlink.Rule, error) {
	var ours []netlink.Rule
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := link.Dump(ctx, "listing routing rules", func() ([]netlink.Rule, error) { return h.RuleList(fam) })
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, err
		}
		for _, rule := range rules {
			if rule.Protocol == link.RouteProtocol {
				ours = append(ours, rule)
			}
		}
	}
	return ours, nil
}

func deleteRule(h *netlink.Handle, rule netlink.Rule) error {
	if err := h.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %s: %w", describeRule(rule), err)
	}
	return nil
}

func describeRule(rule netlink.Rule) string {
	version := 4
	if rule.Family == unix.AF_INET6 {
		version = 6
	}
	from := rule.IifName
	if p, ok := link.ToPrefix(rule.Src); ok {
		from = strings.TrimSpace(p.String() + " " + from)
	}
	return fmt.Sprintf("IPv%d routing rule from %s to table %d", version, from, rule.Table)
}
