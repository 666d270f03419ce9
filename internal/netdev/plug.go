package netdev

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Limits of the kernel.
const (
	maxNameLength  = 15    // IFNAMSIZ without the closing zero
	maxAliasLength = 255   // IFALIASZ without the closing zero
	minMTU         = 68    // RFC 791
	minMTUv6       = 1280  // RFC 8200; below it the kernel takes IPv6 off the link
	maxMTU         = 65535 // veth
)

const (
	hostPrefix  = "fl"
	hostDigits  = maxNameLength - len(hostPrefix)
	aliasPrefix = "fairlead "
	bridgeAlias = aliasPrefix + "bridge"
)

// lowerBase32 keeps names in the characters that need quoting nowhere.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Plug describes one interface of a sandbox (binding kind bridge).
type Plug struct {
	// ContainerID is the runtime's name of the sandbox.
	ContainerID string
	// Name of the interface inside the sandbox, at most 15 bytes.
	Name string
	// Bridge of the host that the interface is plugged into.
	Bridge string
	// MAC of the interface inside the sandbox; nil takes a random one.
	MAC net.HardwareAddr
	// MTU in bytes, at least 68 (1280 with an IPv6 address), and not above
	// the bridge's.
	MTU int
	// Addresses of the interface, of both families.
	Addresses []netip.Prefix
	// Gateways of the default routes, at most one per family. A gateway that
	// is on no address's link is reached on-link.
	Gateways []netip.Addr
	// Routes beside the default routes.
	Routes []Route
	// Bandwidth limits the interface; nil does not.
	Bandwidth *Bandwidth
}

// Route is one route inside a sandbox. A Gateway that is not valid means that
// the destination is on the link.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}

// Plugged is what the kernel made of a Plug.
type Plugged struct {
	HostName  string
	HostIndex int
	MAC       string
	MTU       int
}

// HostName returns the name of the host end of an interface: "fl" and 65 bits
// of a hash in base 32, 15 bytes in all. The same arguments give the same name
// always, so a crash between create and record leaves nothing unknown.
func HostName(containerID, ifname string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifname))
	return hostPrefix + lowerBase32.EncodeToString(sum[:])[:hostDigits]
}

func isHostName(name string) bool {
	digits, ok := strings.CutPrefix(name, hostPrefix)
	if !ok || len(digits) != hostDigits {
		return false
	}
	return strings.Trim(digits, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// hostAlias is what a host end carries, so that the kernel alone can tell
// whose it is.
func hostAlias(containerID, ifname string) string {
	return aliasPrefix + containerID + " " + ifname
}

func parseAlias(alias string) (containerID, ifname string, ok bool) {
	rest, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, " ")
}

// validate returns everything that is wrong with the plug.
func (p *Plug) validate() error {
	var errs []error
	check := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s %w", ErrInvalid, what, err))
		}
	}
	check(fmt.Sprintf("interface name %q", p.Name), checkName(p.Name))
	check(fmt.Sprintf("bridge name %q", p.Bridge), checkName(p.Bridge))
	check(fmt.Sprintf("container ID %q", p.ContainerID), p.checkContainer())
	check(fmt.Sprintf("mac %s of %s", p.MAC, p.Name), p.checkMAC())
	check(fmt.Sprintf("mtu %d of %s", p.MTU, p.Name), p.checkMTU())
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
	if p.Bandwidth != nil {
		errs = append(errs, p.Bandwidth.validate())
	}
	return errors.Join(errs...)
}

func (p *Plug) checkContainer() error {
	if p.ContainerID == "" || strings.ContainsAny(p.ContainerID, " \x00\n") {
		return errors.New("must be one word")
	}
	if over := len(hostAlias(p.ContainerID, p.Name)) - maxAliasLength; over > 0 {
		return fmt.Errorf("is %d bytes too long", over)
	}
	return nil
}

func (p *Plug) checkMAC() error {
	if p.MAC != nil && (len(p.MAC) != 6 || p.MAC[0]&1 != 0 || bytes.Equal(p.MAC, make([]byte, 6))) {
		return errors.New("must be six bytes, not a group's and not all zero")
	}
	return nil
}

func (p *Plug) checkMTU() error {
	if p.MTU < minMTU || p.MTU > maxMTU {
		return fmt.Errorf("must be from %d to %d bytes", minMTU, maxMTU)
	}
	if p.MTU < minMTUv6 && p.has(netip.Addr.Is6) {
		return fmt.Errorf("must be at least %d bytes: it has an IPv6 address", minMTUv6)
	}
	return nil
}

// checkName follows the kernel's dev_valid_name.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > maxNameLength:
		return fmt.Errorf("must have at most %d bytes", maxNameLength)
	case name == ".", name == "..", strings.ContainsAny(name, "/: \t\n\v\f\r\x00%"):
		return errors.New("must have no slash, colon, percent sign or space")
	}
	return nil
}

func (p *Plug) checkGateway(g netip.Addr) error {
	switch {
	case !g.IsValid() || g.Is4In6() || g.IsUnspecified() || g.IsMulticast() || g.Zone() != "":
		return errors.New("must be the plain address of a host")
	case !p.has(func(a netip.Addr) bool { return a.Is4() == g.Is4() }):
		return errors.New("needs an address of its family on the interface")
	}
	return nil
}

func (p *Plug) checkRoute(r Route) error {
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

// has tells whether an address of the interface is of that kind.
func (p *Plug) has(kind func(netip.Addr) bool) bool {
	for _, a := range p.Addresses {
		if kind(a.Addr()) {
			return true
		}
	}
	return false
}

// onLink tells whether the gateway is reached without a route of its own: it
// is link-local IPv6, or in the subnet of an address.
func (p *Plug) onLink(gateway netip.Addr) bool {
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
