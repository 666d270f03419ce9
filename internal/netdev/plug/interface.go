package plug

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

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

// has reports whether an address of the interface is of a kind.
func (p *Interface) has(kind func(netip.Addr) bool) bool {
	for _, a := range p.Addresses {
		if kind(a.Addr()) {
			return true
		}
	}
	return false
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
