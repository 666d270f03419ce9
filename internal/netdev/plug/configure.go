package plug

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Configure sets the addresses and routes of the interface, in the namespace.
func Configure(ns *link.Namespace, p Interface) error {
	return ns.With(func(c *link.Conn) error {
		index, err := c.Index(p.Name)
		if err != nil {
			return err
		}
		if index == 0 {
			return fmt.Errorf("%w: %s vanished from the namespace at %q", link.ErrNoLink, p.Name, ns.Path())
		}
		loUp, err := c.Up("lo")
		if err != nil {
			return err
		}
		steps := []link.Step{link.Raise(p.Name)}
		if !loUp {
			steps = append(steps, link.Raise("lo"))
		}
		steps = append(steps, familySteps(p, index, netip.Addr.Is4)...)
		v6 := familySteps(p, index, netip.Addr.Is6)
		if !p.has(netip.Addr.Is4) {
			steps, v6 = append(steps, v6...), nil
		}
		err = c.Do(steps...)
		if err == nil {
			err = c.Do(v6...)
		}
		if v6 == nil {
			v6 = familySteps(p, index, netip.Addr.Is6)
		}
		if errors.Is(err, unix.EACCES) && len(v6) > 0 { // IPv6 is switched off here, so none of its steps took effect
			return enableIPv6(ns, c, p, v6)
		}
		if errors.Is(err, unix.EOPNOTSUPP) && len(v6) > 0 {
			return fmt.Errorf("%w (does this kernel have IPv6?)", err)
		}
		return err
	})
}

// enableIPv6 switches IPv6 on for this one interface and repeats the steps. Some runtimes
// switch IPv6 off in every namespace that they make.
func enableIPv6(ns *link.Namespace, c *link.Conn, p Interface, steps []link.Step) error {
	setting := "net/ipv6/conf/" + p.Name + "/disable_ipv6"
	err := ns.Do(func() error {
		_, err := link.SetSysctl(setting, "0")
		return err
	})
	if err != nil {
		return fmt.Errorf("%s has an IPv6 address and IPv6 is switched off in the namespace at %q: %w", p.Name, ns.Path(), err)
	}
	return c.Do(steps...)
}

func familySteps(p Interface, index int, of func(netip.Addr) bool) []link.Step {
	var steps []link.Step
	for _, a := range p.Addresses {
		if of(a.Addr()) {
			steps = append(steps, link.AddAddress(index, a, netlink.SCOPE_UNIVERSE))
		}
	}
	ways := p.ways(of)
	for _, g := range ways {
		// Each interface on a routed network has such a route to the same gateway.
		steps = append(steps, podRoute(index, Route{Destination: netip.PrefixFrom(g, g.BitLen())}, unix.NLM_F_APPEND, true))
	}
	for _, r := range p.Routes {
		if of(r.Destination.Addr()) {
			steps = append(steps, podRoute(index, r, unix.NLM_F_EXCL, !r.Gateway.IsValid() || p.onLink(r.Gateway) || slices.Contains(ways, r.Gateway)))
		}
	}
	for _, g := range p.Gateways {
		if of(g) {
			steps = append(steps, podRoute(index, Route{Destination: defaultRoute(g), Gateway: g}, unix.NLM_F_EXCL, p.onLink(g) || slices.Contains(ways, g)))
		}
	}
	return steps
}

// ways returns the gateways that need a route of their own, because they are in the
// subnet of no address. A default route could name such a gateway as on-link instead,
// but then no later route could use it. The plugin sbr adds later routes.
func (p *Interface) ways(of func(netip.Addr) bool) (ways []netip.Addr) {
	add := func(g netip.Addr) {
		there := func(r Route) bool { return r.Destination == netip.PrefixFrom(g, g.BitLen()) }
		if g.IsValid() && of(g) && !p.onLink(g) && !slices.Contains(ways, g) && !slices.ContainsFunc(p.Routes, there) {
			ways = append(ways, g)
		}
	}
	for _, g := range p.Gateways {
		add(g)
	}
	for _, r := range p.Routes {
		add(r.Gateway)
	}
	return ways
}

func defaultRoute(gateway netip.Addr) netip.Prefix {
	if gateway.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// podRoute returns the step that adds a route inside a sandbox. unless is NLM_F_EXCL, if
// the step fails where a route to the destination exists, or NLM_F_APPEND, if it fails
// only where that route is over the same interface.
func podRoute(index int, r Route, unless int, onLink bool) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unless)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len = uint8(link.Family(r.Destination.Addr())), uint8(r.Destination.Bits())
	msg.Protocol = link.RouteProtocol
	what := "adding route to " + r.Destination.String()
	if r.Gateway.IsValid() {
		what += " via " + r.Gateway.String()
		if !onLink {
			msg.Flags = unix.RTNH_F_ONLINK
		}
	} else if r.Destination.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	if r.Destination.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Destination.Addr().AsSlice()))
	}
	if r.Gateway.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	return link.Step{What: what, Req: req}
}
