package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// ErrNoUplink means that the node's uplink is missing or ambiguous.
var ErrNoUplink = errors.New("no uplink")

// Uplink is the interface that leads to the other nodes.
type Uplink struct {
	Name  string
	Index int
	MTU   int // bytes
	// Addresses are the first global address of each family, if any.
	Addresses []netip.Prefix
	// Sources are the first address of each family from which the host can send now, if any.
	Sources []netip.Addr
	// Gateways are the next hops of the default routes by this link, at most one for each
	// family.
	Gateways []netip.Addr
}

// Uplink finds the uplink and its addresses. An empty name takes the interface of the
// default route with the lowest metric, of IPv4 or otherwise of IPv6. Without a default
// route it takes the only interface that is up and has a global address, except loopback
// and the links of Fairlead. Errors: ErrNoUplink with the reason, otherwise the kernel's.
func (k *Kernel) Uplink(ctx context.Context, name string) (Uplink, error) {
	h, err := k.Handle()
	if err != nil {
		return Uplink{}, err
	}
	defer h.Close()
	dev, err := pickUplink(ctx, h, name)
	if err != nil {
		return Uplink{}, err
	}
	a := dev.Attrs()
	up := Uplink{Name: a.Name, Index: a.Index, MTU: a.MTU}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		all, usable, err := link.GlobalAddresses(ctx, h, dev, fam)
		if err != nil {
			return Uplink{}, err
		}
		if len(all) > 0 {
			up.Addresses = append(up.Addresses, all[0])
		}
		if len(usable) > 0 {
			up.Sources = append(up.Sources, usable[0].Addr())
		}
		best, err := defaultRoute(ctx, h, fam, a.Index)
		if err != nil {
			return Uplink{}, err
		}
		if via := gatewayOf(best); via.IsValid() && via.Is4() == (fam == unix.AF_INET) {
			up.Gateways = append(up.Gateways, via)
		}
	}
	k.watch(func(w *watched) { w.uplink, w.uplinkIndex = up.Name, up.Index })
	return up, nil
}

func pickUplink(ctx context.Context, h *netlink.Handle, name string) (netlink.Link, error) {
	if name != "" {
		dev, err := h.LinkByName(name)
		if link.IsNoLink(err) {
			return nil, fmt.Errorf("%w: this node has no interface %s", ErrNoUplink, name)
		}
		if err != nil {
			return nil, fmt.Errorf("looking at uplink %s: %w", name, err)
		}
		return dev, nil
	}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		best, err := defaultRoute(ctx, h, fam, 0)
		if err != nil {
			return nil, err
		}
		index := linkOf(best)
		if index == 0 {
			continue
		}
		dev, err := h.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("looking at the interface of the default route: %w", err)
		}
		return dev, nil
	}
	return onlyGlobal(ctx, h)
}

// defaultRoute returns the default route with the lowest metric, by a link if its index is
// not 0. It returns a route without a link if there is none.
func defaultRoute(ctx context.Context, h *netlink.Handle, fam, by int) (best netlink.Route, err error) {
	routes, err := link.Dump(ctx, "listing routes", func() ([]netlink.Route, error) {
		return h.RouteListFiltered(fam, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return best, err
	}
	for _, r := range routes {
		if p, ok := link.ToPrefix(r.Dst); ok && p.Bits() != 0 || r.Type != unix.RTN_UNICAST {
			continue
		}
		index := linkOf(r)
		if index == 0 || by != 0 && index != by {
			continue
		}
		if linkOf(best) == 0 || r.Priority < best.Priority {
			best = r
		}
	}
	return best, nil
}

// linkOf returns the index of the first link of a route, 0 if it has none.
func linkOf(r netlink.Route) int {
	if r.LinkIndex == 0 && len(r.MultiPath) > 0 {
		return r.MultiPath[0].LinkIndex
	}
	return r.LinkIndex
}

func onlyGlobal(ctx context.Context, h *netlink.Handle) (netlink.Link, error) {
	links, err := link.Dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return nil, err
	}
	var found []netlink.Link
	var names []string
	for _, dev := range links {
		a := dev.Attrs()
		if a.Flags&net.FlagUp == 0 || a.Flags&net.FlagLoopback != 0 || strings.HasPrefix(a.Alias, link.AliasPrefix) {
			continue
		}
		for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
			addrs, _, err := link.GlobalAddresses(ctx, h, dev, fam)
			if err != nil {
				return nil, err
			}
			if len(addrs) > 0 {
				found, names = append(found, dev), append(names, a.Name)
				break
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w: this node has no default route, and no interface that is up and has a global address", ErrNoUplink)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%w: this node has no default route, and more than one interface with a global address (%s): name the one to use",
		ErrNoUplink, strings.Join(names, ", "))
}
