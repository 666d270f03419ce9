package plug

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// Interface describes one interface of a sandbox before it is made.
type Interface struct {
	// ContainerID is the runtime's name of the sandbox.
	ContainerID string
	// Name of the interface inside the sandbox, at most 15 bytes.
	Name string
	// Binding names the kind and has the kind's own parameters.
	Binding v1alpha1.Binding
	// MAC of the interface inside the sandbox; nil takes a random one, or that of another
	// link if the kind is a Borrower.
	MAC net.HardwareAddr
	// MTU in bytes, at least 68 (1280 with an IPv6 address), and at most that of the
	// link that the interface is plugged into; 0 means that of this link.
	MTU int
	// Addresses of the interface, of both families.
	Addresses []netip.Prefix
	// Gateways of the default routes, at most one per family. A gateway outside of all
	// subnets of the addresses is reached on-link.
	Gateways []netip.Addr
	// Routes beside the default routes.
	Routes []Route
	// Bandwidth limits the interface; nil is no limit.
	Bandwidth *Bandwidth
	// Chain are the CNI plugins that are executed after the interface is made; nil is
	// none.
	Chain *v1alpha1.PluginList
	// Args is CNI_ARGS of executed plugins.
	Args string
	// GatewayMAC is the MAC of the gateways in the sandbox's neighbour table; a kind sets it. Nil
	// has the sandbox ask for it.
	GatewayMAC net.HardwareAddr
}

// Route is one route inside a sandbox. Without a valid Gateway the destination is on
// the link.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}

// Validate returns all errors of an interface that a kind makes, except those of its
// binding. Errors: link.ErrInvalid.
func (p *Interface) Validate() error {
	errs := []error{
		p.validateAddresses(),
		link.Invalid(fmt.Sprintf("mac %s of %s", p.MAC, p.Name), p.checkMAC()),
		link.Invalid(fmt.Sprintf("mtu %d of %s", p.MTU, p.Name), p.checkMTU()),
	}
	if p.Bandwidth != nil {
		errs = append(errs, p.Bandwidth.validate())
	}
	return errors.Join(errs...)
}

// ValidateUnlimited returns the errors of Validate for a kind that limits no bandwidth, and one
// if a limit is set. Errors: link.ErrInvalid.
func (p *Interface) ValidateUnlimited() error {
	err := p.Validate()
	if p.Bandwidth != nil {
		err = errors.Join(err, link.Invalid("bandwidth of "+p.Name, errors.New("must not be set: only an interface on a bridge can be limited")))
	}
	return err
}

// validateAddresses returns all errors of the names, addresses and routes of an
// interface. Errors: link.ErrInvalid.
func (p *Interface) validateAddresses() error {
	var errs []error
	check := func(what string, err error) { errs = append(errs, link.Invalid(what, err)) }
	check(fmt.Sprintf("interface name %q", p.Name), link.CheckName(p.Name))
	check(fmt.Sprintf("container ID %q", p.ContainerID), p.checkContainer())
	for _, a := range p.Addresses {
		if !a.IsValid() || a.Addr().Is4In6() || a.Addr().IsUnspecified() || a.Addr().IsMulticast() {
			check(fmt.Sprintf("address %v of %s", a, p.Name), errors.New("must be the address of a host with a prefix length"))
		}
	}
	for _, g := range p.Gateways {
		check(fmt.Sprintf("gateway %v of %s", g, p.Name), p.checkGateway(g))
	}
	for _, r := range p.Routes {
		check(fmt.Sprintf("route to %v of %s", r.Destination, p.Name), p.checkRoute(r))
	}
	return errors.Join(errs...)
}

func (p *Interface) checkContainer() error {
	if p.ContainerID == "" || strings.ContainsAny(p.ContainerID, " \x00\n") {
		return errors.New("must be one word")
	}
	if over := len(link.OwnerAlias(p.ContainerID, p.Name)) - link.MaxAliasLength; over > 0 {
		return fmt.Errorf("is %d bytes too long", over)
	}
	return nil
}

func (p *Interface) checkMAC() error {
	if p.MAC != nil && (len(p.MAC) != 6 || p.MAC[0]&1 != 0 || bytes.Equal(p.MAC, make([]byte, 6))) {
		return errors.New("must be six bytes, not a group's and not all zero")
	}
	return nil
}

func (p *Interface) checkMTU() error {
	if p.MTU == 0 {
		return nil
	}
	if p.MTU < link.MinMTU || p.MTU > link.MaxMTU {
		return fmt.Errorf("must be from %d to %d bytes", link.MinMTU, link.MaxMTU)
	}
	if p.MTU < link.MinMTUv6 && p.has(netip.Addr.Is6) {
		return fmt.Errorf("must be at least %d bytes: it has an IPv6 address", link.MinMTUv6)
	}
	return nil
}

// FitMTU sets an MTU of 0 to that of the link that the interface is plugged into, which
// has a name like "bridge br1". Errors: link.ErrInvalid if the MTU does not fit.
func (p *Interface) FitMTU(mtu int, into string) error {
	if p.MTU > mtu {
		return fmt.Errorf("%w: mtu %d of %s must not be above the %d bytes of %s", link.ErrInvalid, p.MTU, p.Name, mtu, into)
	}
	if p.MTU > 0 {
		return nil
	}
	p.MTU = mtu
	return link.Invalid(fmt.Sprintf("mtu %d of %s, which is that of %s,", mtu, p.Name, into), p.checkMTU())
}

func (p *Interface) checkGateway(g netip.Addr) error {
	switch {
	case !g.IsValid() || g.Is4In6() || g.IsUnspecified() || g.IsMulticast() || g.Zone() != "":
		return errors.New("must be the plain address of a host")
	case !p.has(func(a netip.Addr) bool { return a.Is4() == g.Is4() }):
		return errors.New("needs an address of its family on the interface")
	}
	return nil
}

func (p *Interface) checkRoute(r Route) error {
	switch {
	case !r.Destination.IsValid() || r.Destination.Addr().Is4In6():
		return errors.New("must have a destination in CIDR form")
	case r.Destination != r.Destination.Masked():
		return fmt.Errorf("must have no host bits: %v", r.Destination.Masked())
	case !r.Gateway.IsValid():
		return nil
	case r.Gateway.Is4() != r.Destination.Addr().Is4():
		return fmt.Errorf("must have a gateway of its own family, not %v", r.Gateway)
	}
	if err := p.checkGateway(r.Gateway); err != nil {
		return fmt.Errorf("has gateway %v, which %w", r.Gateway, err)
	}
	return nil
}

// has reports whether an address of the interface is of a kind, or one that is routed to it.
func (p *Interface) has(kind func(netip.Addr) bool) bool {
	for _, a := range p.Addresses {
		if kind(a.Addr()) {
			return true
		}
	}
	return p.Binding.Routed != nil && slices.ContainsFunc(p.Binding.Routed.Of, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && kind(a)
	})
}

// onLink reports whether the gateway is reached without a route of its own: it is
// link-local IPv6, or in the subnet of an address.
func (p *Interface) onLink(gateway netip.Addr) bool {
	if gateway.Is6() && gateway.IsLinkLocalUnicast() {
		return true
	}
	for _, a := range p.Addresses {
		if a.Contains(gateway) {
			return true
		}
	}
	return false
}

// RandomMAC returns a MAC as the kernel chooses it (eth_random_addr): a local address of
// one station. A MAC that is chosen here need not be read back, and udev rules do not
// replace it.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails: it ends the program first
	mac[0] = mac[0]&^1 | 2
	return mac
}

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
	if p.GatewayMAC != nil { // the sandbox asks nobody for them
		for _, g := range p.neighbours(of) {
			steps = append(steps, link.Neighbour(index, g, p.GatewayMAC, unix.NUD_PERMANENT))
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
	for _, r := range p.DefaultRoutes() {
		if of(r.Gateway) {
			steps = append(steps, podRoute(index, r, unix.NLM_F_EXCL, p.onLink(r.Gateway) || slices.Contains(ways, r.Gateway)))
		}
	}
	return steps
}

// neighbours returns all gateways of a family.
func (p *Interface) neighbours(of func(netip.Addr) bool) []netip.Addr {
	all := slices.Clone(p.Gateways)
	for _, r := range p.Routes {
		all = append(all, r.Gateway)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.DeleteFunc(slices.Compact(all), func(a netip.Addr) bool { return !a.IsValid() || !of(a) })
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

// DefaultRoutes returns one default route for each gateway.
func (p *Interface) DefaultRoutes() (out []Route) {
	for _, g := range p.Gateways {
		out = append(out, Route{Destination: defaultRoute(g), Gateway: g})
	}
	return out
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
