package ledger

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// PlainAddresses returns the addresses of an interface without their prefix lengths. The
// error names the PodAttachment and the interface with an address that cannot be parsed.
func PlainAddresses(pa *v1alpha1.PodAttachment, i v1alpha1.Interface) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, cidr := range i.Addresses {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("PodAttachment %s/%s: interface %s: %w", pa.Namespace, pa.Name, i.Name, err)
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, nil
}

// Parse returns the interface in the form that kinds of binding take. Errors name the
// field that cannot be parsed.
func (i *Interface) Parse(containerID string) (plug.Interface, error) {
	p, err := i.ParseAddresses()
	if err != nil {
		return p, err
	}
	p.ContainerID, p.Name, p.MTU, p.Bandwidth = containerID, i.Name, int(i.MTU), i.Bandwidth
	p.Binding, p.Chain = i.Binding, i.Chain
	if i.MAC != "" {
		mac, err := net.ParseMAC(i.MAC)
		if err != nil {
			return p, fmt.Errorf("mac: %w", err)
		}
		p.MAC = mac
	}
	return p, nil
}

// Known returns the MAC and the MTU of the interface, in bytes; empty and 0 where they are
// those of another link. A device keeps its own unless others are requested.
func (i *Interface) Known() (mac string, mtu int) {
	mac, mtu = i.MAC, int(i.MTU)
	if d := i.Made.Device; d != nil {
		mac, mtu = cmp.Or(mac, d.MAC), cmp.Or(mtu, d.MTU)
	}
	return mac, mtu
}

// ParseAddresses returns the addresses, gateways and routes of an interface, which
// another plugin may make. Errors name the field that cannot be parsed.
func (i *Interface) ParseAddresses() (p plug.Interface, err error) {
	for n, s := range i.Addresses {
		a, err := netip.ParsePrefix(s)
		if err != nil {
			return p, fmt.Errorf("addresses[%d]: %w", n, err)
		}
		p.Addresses = append(p.Addresses, a)
	}
	for n, s := range i.Gateways {
		g, err := netip.ParseAddr(s)
		if err != nil {
			return p, fmt.Errorf("gateways[%d]: %w", n, err)
		}
		p.Gateways = append(p.Gateways, g)
	}
	for n, r := range i.Routes {
		route, err := parseRoute(r)
		if err != nil {
			return p, fmt.Errorf("routes[%d]: %w", n, err)
		}
		p.Routes = append(p.Routes, route)
	}
	return p, nil
}

func parseRoute(r v1alpha1.Route) (out plug.Route, err error) {
	if out.Destination, err = netip.ParsePrefix(r.Destination); err != nil {
		return out, fmt.Errorf("destination: %w", err)
	}
	if r.Gateway == "" {
		return out, nil
	}
	if out.Gateway, err = netip.ParseAddr(r.Gateway); err != nil {
		return out, fmt.Errorf("gateway: %w", err)
	}
	return out, nil
}

// DefaultRoutes returns one default route for each gateway of an interface.
func DefaultRoutes(p plug.Interface) (out []plug.Route) {
	for _, g := range p.Gateways {
		everywhere := netip.IPv6Unspecified()
		if g.Is4() {
			everywhere = netip.IPv4Unspecified()
		}
		out = append(out, plug.Route{Destination: netip.PrefixFrom(everywhere, 0), Gateway: g})
	}
	return out
}

// RoutesOf returns the routes that the kernel must have for an interface: its own, then
// its default routes.
func RoutesOf(p plug.Interface) []plug.Route {
	return append(slices.Clone(p.Routes), DefaultRoutes(p)...)
}
