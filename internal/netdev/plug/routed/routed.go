// Package routed is the kind of interfaces that are one end of a veth whose other end, the host
// end, is their only neighbour. The host routes the addresses of the sandbox to it.
package routed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

const (
	// RouteProtocol is the protocol of the host's routes and neighbours of sandboxes. The kernel
	// removes them with the host end.
	RouteProtocol = 159
	// word ends the alias of a host end.
	word = "routed:"
)

// GatewayMAC is the MAC of every host end on every node: a guest keeps its neighbour when it moves to
// another node.
var GatewayMAC = net.HardwareAddr{0x0a, 0x58, 169, 254, 1, 1}

// Gateways of the sandboxes. IPv4's is an address of no link: the host answers for it by a proxy entry,
// so that arp_ignore has no effect, and sends nothing from it.
var (
	GatewayV4 = netip.MustParseAddr(v1alpha1.RoutedGatewayV4)
	GatewayV6 = netip.MustParseAddr(v1alpha1.RoutedGatewayV6)
)

type kind struct {
	*plug.Veths
	// source returns the address from which the host sends to sandboxes.
	source func(is4 bool) netip.Addr
}

// New returns the kind plug.KindRouted, over sockets on the host. source returns the address of a
// family from which the host sends to sandboxes; an invalid one leaves the choice to the kernel.
func New(s *link.Sockets, source func(is4 bool) netip.Addr) plug.Kind {
	if source == nil {
		source = func(bool) netip.Addr { return netip.Addr{} }
	}
	return &kind{Veths: plug.NewVeths(s), source: source}
}

func (*kind) Validate(i plug.Interface) error {
	errs := []error{i.Validate()}
	if i.Binding.Routed == nil {
		return errors.Join(append(errs, link.Invalid("binding", errors.New("must be routed")))...)
	}
	if i.MTU == 0 {
		errs = append(errs, link.Invalid("mtu of "+i.Name, errors.New("must be set: there is no other link to take it from")))
	}
	of := i.Binding.Routed.Of
	if len(of) == 0 && len(i.Addresses) == 0 {
		errs = append(errs, link.Invalid("addresses of "+i.Name, errors.New("must not be empty unless routed.of has addresses")))
	}
	for _, text := range of {
		if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" || a.Is4In6() {
			errs = append(errs, link.Invalid(fmt.Sprintf("routed.of %q of %s", text, i.Name), errors.New("must be an address")))
		}
	}
	return errors.Join(errs...)
}

// Plan describes the host end, with what the host routes to it: Repair needs no API.
func (*kind) Plan(at link.Place, i plug.Interface) plug.Made {
	m := plug.Made{Kind: plug.KindRouted, ContainerID: i.ContainerID, Name: i.Name, Namespace: at, HostLink: plug.RoutedName(i.ContainerID, i.Name)}
	if i.Binding.Routed != nil {
		m.Routes, m.Leg = texts(destinations(i)), len(i.Addresses) == 0
	}
	if i.MAC != nil {
		m.MAC = i.MAC.String()
	}
	return m
}

// destinations returns the addresses that the host routes to the host end, in order.
func destinations(i plug.Interface) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range i.Addresses {
		out = append(out, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	for _, text := range i.Binding.Routed.Of {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return ordered(out)
}

func ordered(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

func texts(all []netip.Prefix) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// Make takes as many exchanges with the kernel as for a bridge.
func (k *kind) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) error {
	if err := k.Validate(i); err != nil {
		return err
	}
	return k.MakePair(ctx, ns, i, func(_ *link.Conn, i *plug.Interface) (plug.Pair, error) {
		i.GatewayMAC = GatewayMAC
		m := k.Plan(link.Place{}, *i)
		return plug.Pair{Host: m.HostLink, HostMAC: GatewayMAC, Group: m.EndGroup()}, nil
	}, func(host *link.Conn, end int, i plug.Interface, plan plug.Pair) error {
		first := []link.Step{k.settings(plan.Host, i.ContainerID, i.Name)}
		return k.lead(ctx, host, way{plan.Host, end, destinations(i), plan.PeerMAC}, first)
	})
}

// way leads to the addresses of a sandbox by a host end.
type way struct {
	name string
	end  int
	to   []netip.Prefix
	mac  net.HardwareAddr
}

// lead sends the first steps of a host end, and has the host reach addresses by it. A route to a former
// sandbox with an address is replaced. Errors: a route of another program leads to an address.
func (k *kind) lead(ctx context.Context, c *link.Conn, w way, first []link.Step) (err error) {
	over := uint16(unix.NLM_F_EXCL)
	for range 3 { // each obstacle is met once
		err = c.Do(append(slices.Clip(first), k.reach(w.end, w.to, w.mac, over)...)...)
		obstacle := err
		switch {
		case errors.Is(obstacle, unix.EEXIST) && over == unix.NLM_F_EXCL:
			over, err = unix.NLM_F_REPLACE, k.foreign(ctx, w.to)
		case errors.Is(obstacle, unix.EACCES): // some hosts switch IPv6 off on every new link
			err = k.In(func() error {
				_, err := link.SetSysctl("net/ipv6/conf/"+w.name+"/disable_ipv6", "0")
				return err
			})
		default:
			return err
		}
		if err != nil {
			return err
		}
		err = obstacle
	}
	return err
}

// foreign returns an error that names a route of another program to one of some addresses.
func (k *kind) foreign(ctx context.Context, to []netip.Prefix) error {
	h, err := k.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing the host's routes", func() ([]netlink.Route, error) { return h.RouteList(nil, unix.AF_UNSPEC) })
	for _, r := range all {
		if p, ok := link.ToPrefix(r.Dst); ok && r.Protocol != RouteProtocol && slices.Contains(to, p) {
			return fmt.Errorf("the host has a route to %s that another program made (protocol %d, link %d): remove it, or exclude the address from its pool", p, r.Protocol, r.LinkIndex)
		}
	}
	return err
}

// Differences compares the host end and the routes to it.
func (k *kind) Differences(ctx context.Context, m plug.Made, inside plug.Inspected) ([]string, error) {
	end, diffs, ok, err := k.EndDifferences(m, inside)
	if err != nil || !ok {
		return diffs, err
	}
	if end.Master != "" {
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is a port of %q", m.HostLink, m.Name, end.Master))
	}
	routes, _, err := k.routes(ctx)
	if err != nil {
		return nil, err
	}
	has := texts(routes[end.Index])
	for _, p := range m.Routes {
		if !slices.Contains(has, p) {
			diffs = append(diffs, fmt.Sprintf("the host has no route to %s by host end %s of %s, or no neighbour", p, m.HostLink, m.Name))
		}
	}
	return diffs, nil
}

// Repair sets the host end up, takes it off a bridge and routes the addresses to it again: the kernel
// removes the routes and the neighbours of a link that is set down. A destination that another host
// end has stays there: that of a later sandbox with the address.
func (k *kind) Repair(ctx context.Context, m plug.Made) (bool, error) {
	if len(m.Routes) == 0 { // it was found on the host, without a record
		return false, nil
	}
	end, err := k.LinkState(m.HostLink)
	if errors.Is(err, link.ErrNoLink) || err == nil && end.Type != "veth" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	routes, ends, err := k.routes(ctx)
	if err != nil {
		return false, err
	}
	var missing []netip.Prefix
	for _, text := range m.Routes {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return false, link.Invalid("route "+text, err)
		}
		other := ends[p] != 0 && ends[p] != end.Index
		if !other && !slices.Contains(routes[end.Index], p) {
			missing = append(missing, p)
		}
	}
	if end.Up && end.Master == "" && end.Group == m.EndGroup() && len(missing) == 0 {
		return false, nil
	}
	c, err := k.Conn()
	if err != nil {
		return false, err
	}
	defer k.Release(c)
	alone := link.SetLink(m.HostLink, "bridge", nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(0)))
	steps := []link.Step{link.SetGroup(m.HostLink, m.EndGroup()), alone, link.Raise(m.HostLink), k.settings(m.HostLink, m.ContainerID, m.Name)}
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		mac = nil // the host asks for it
	}
	return true, k.lead(ctx, c, way{m.HostLink, end.Index, missing, mac}, steps)
}

// routes returns the destinations that the host reaches by each host end, in order, by its index, and the
// host end of each destination. The host reaches a destination if its route has the right source, its
// neighbour is known, and the host is the gateway on the host end.
func (k *kind) routes(ctx context.Context) (byEnd map[int][]netip.Prefix, ends map[netip.Prefix]int, err error) {
	h, err := k.Handle()
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	byEnd, ends = map[int][]netip.Prefix{}, map[netip.Prefix]int{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := k.routesOf(ctx, h, family, byEnd, ends); err != nil {
			return nil, nil, err
		}
	}
	for at := range byEnd {
		byEnd[at] = ordered(byEnd[at])
	}
	return byEnd, ends, nil
}

// routesOf adds the destinations of one family.
func (k *kind) routesOf(ctx context.Context, h *netlink.Handle, family int, byEnd map[int][]netip.Prefix, ends map[netip.Prefix]int) error {
	all, err := link.Dump(ctx, "listing the routes to pods", func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil || len(all) == 0 {
		return err
	}
	near, err := neighbours(ctx, h, family)
	if err != nil {
		return err
	}
	for _, r := range all {
		p, ok := link.ToPrefix(r.Dst)
		if !ok || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		ends[p] = r.LinkIndex
		known := near[at{r.LinkIndex, p.Addr()}] && (near[at{r.LinkIndex, GatewayV4}] || near[at{r.LinkIndex, GatewayV6}])
		if known && k.rightSource(r) {
			byEnd[r.LinkIndex] = append(byEnd[r.LinkIndex], p)
		}
	}
	return nil
}

// rightSource reports whether a route has the source that the host has for its family.
func (k *kind) rightSource(r netlink.Route) bool {
	source := k.source(r.Family == unix.AF_INET)
	from, _ := netip.AddrFromSlice(r.Src)
	return !source.IsValid() || from.Unmap() == source
}

// at is an address on a link.
type at struct {
	link    int
	address netip.Addr
}

// neighbours returns the permanent neighbours of a family, and the gateways that the host answers for.
func neighbours(ctx context.Context, h *netlink.Handle, family int) (map[at]bool, error) {
	all, err := link.Dump(ctx, "listing the neighbours", func() ([]netlink.Neigh, error) { return h.NeighList(0, family) })
	if err != nil {
		return nil, err
	}
	out := map[at]bool{}
	note := func(link int, ip net.IP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			out[at{link, a.Unmap()}] = true
		}
	}
	for _, n := range all {
		if n.State&unix.NUD_PERMANENT != 0 {
			note(n.LinkIndex, n.IP)
		}
	}
	if family == unix.AF_INET {
		proxies, err := link.Dump(ctx, "listing the addresses that the host answers for", func() ([]netlink.Neigh, error) { return h.NeighProxyList(0, family) })
		for _, n := range proxies {
			note(n.LinkIndex, n.IP)
		}
		return out, err
	}
	addresses, err := link.Dump(ctx, "listing the host's addresses", func() ([]netlink.Addr, error) { return h.AddrList(nil, family) })
	for _, a := range addresses {
		if a.Scope == unix.RT_SCOPE_LINK {
			note(a.LinkIndex, a.IP)
		}
	}
	return out, err
}

// Find returns the interfaces that have a host end, with the destinations that the host routes to it,
// and those that only have their shaper left.
func (k *kind) Find(ctx context.Context, all []netlink.Link) []plug.Found {
	routes, _, err := k.routes(ctx)
	if err != nil {
		routes = nil // each differs from its record then, and Repair reads them again
	}
	var found []plug.Found
	for _, l := range all {
		if f, _, ok := plug.EndOf(l, plug.KindRouted, plug.RoutedName); ok {
			f.Up = f.Up && l.Attrs().MasterIndex == 0
			f.Routes, f.Leg = texts(routes[f.Index]), l.Attrs().Group == link.GroupLeg
			found = append(found, f)
		}
	}
	return append(found, plug.Shapers(all, plug.KindRouted, plug.RoutedName)...)
}
