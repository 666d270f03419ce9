package plug

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Inspected is the state of one interface of a sandbox in the kernel.
type Inspected struct {
	// MAC in the form 0a:58:0a:f4:00:05, MTU in bytes.
	MAC string
	MTU int
	Up  bool
	// Peer is the index of the other end of a veth.
	Peer int
	// Addresses of any scope, each with its prefix length.
	Addresses []netip.Prefix
	// Routes are those of the main table over the interface. The default routes have a
	// destination with a prefix of 0 bits.
	Routes []Route
	// OtherRoutes are the routes of other tables, except the kernel's table of local
	// addresses. Plugins that route by the source address put routes there.
	OtherRoutes []Route
}

// Namespaces are the network namespaces of the sandboxes of this machine.
type Namespaces struct {
	// Dir is the directory in which container runtimes keep them.
	Dir string
}

// NamespaceDir is the directory that all container runtimes use.
const NamespaceDir = "/run/netns"

// Open opens the namespace at a path. Errors: those of link.OpenNamespace.
func (Namespaces) Open(path string) (*link.Namespace, error) { return link.OpenNamespace(path) }

// Announce announces the addresses of an interface to its neighbors.
func (Namespaces) Announce(ns *link.Namespace, i Interface) error {
	var addresses []netip.Addr
	for _, p := range i.Addresses {
		addresses = append(addresses, p.Addr())
	}
	return ns.Announce(i.Name, i.MAC, addresses)
}

// Inspect reads all interfaces of a namespace, by name. It enters the namespace once and
// reads one list each of links, addresses and routes.
func (Namespaces) Inspect(ctx context.Context, ns *link.Namespace) (map[string]Inspected, error) {
	h, err := ns.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := link.Dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return nil, err
	}
	addresses, err := link.Dump(ctx, "listing addresses", func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	routes, err := link.Dump(ctx, "listing routes", func() ([]netlink.Route, error) {
		// Without a table in the filter, the library lists only the main table.
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	byIndex := make(map[int]*Inspected, len(links))
	for _, link := range links {
		a := link.Attrs()
		byIndex[a.Index] = &Inspected{MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Peer: a.ParentIndex}
	}
	for _, a := range addresses {
		if i := byIndex[a.LinkIndex]; i != nil {
			if p, ok := link.ToPrefix(a.IPNet); ok {
				i.Addresses = append(i.Addresses, p)
			}
		}
	}
	for _, r := range routes {
		i := byIndex[r.LinkIndex]
		switch {
		case i == nil || r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_LOCAL:
		case r.Table == unix.RT_TABLE_MAIN:
			i.Routes = append(i.Routes, toRoute(r))
		default:
			i.OtherRoutes = append(i.OtherRoutes, toRoute(r))
		}
	}
	out := make(map[string]Inspected, len(links))
	for _, link := range links {
		out[link.Attrs().Name] = *byIndex[link.Attrs().Index]
	}
	return out, nil
}

func toRoute(r netlink.Route) Route {
	destination, ok := link.ToPrefix(r.Dst)
	if !ok {
		everywhere := netip.IPv6Unspecified()
		if r.Family == unix.AF_INET {
			everywhere = netip.IPv4Unspecified()
		}
		destination = netip.PrefixFrom(everywhere, 0)
	}
	gateway, _ := netip.AddrFromSlice(r.Gw)
	return Route{Destination: destination, Gateway: gateway.Unmap()}
}

// Holding returns the path of a namespace in Dir in which an interface has one of the
// addresses, "" if there is none. It serves sandboxes whose namespace and links are both
// unknown. It returns an error if a namespace may be hidden, since the search is no proof
// then.
func (n Namespaces) Holding(ctx context.Context, addrs []netip.Addr) (string, error) {
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		return "", fmt.Errorf("looking for the network namespaces of sandboxes: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(n.Dir, e.Name())
		found, err := n.holds(ctx, path, addrs)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("looking for %v in network namespaces: %w", addrs, err)
		}
		if found {
			return path, nil
		}
	}
	return "", nil
}

func (n Namespaces) holds(ctx context.Context, path string, addrs []netip.Addr) (bool, error) {
	ns, err := link.OpenAnyNamespace(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = ns.Close() }()
	interfaces, err := n.Inspect(ctx, ns)
	if err != nil {
		return false, err
	}
	for _, i := range interfaces {
		if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return slices.Contains(addrs, p.Addr()) }) {
			return true, nil
		}
	}
	return false, nil
}
