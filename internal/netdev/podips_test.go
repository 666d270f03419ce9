package netdev

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// podIPs reads the addresses of global scope of an interface in a namespace:
// IPv4 first, then IPv6, each in the kernel's order. The error is ErrNoLink
// when there is no such interface.
func podIPs(ns *Namespace, ifname string) ([]netip.Addr, error) {
	var h *netlink.Handle
	err := ns.do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket in the namespace at %q: %w", ns.path, err)
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if isNoLink(err) {
		return nil, fmt.Errorf("%w: %s in the namespace at %q", ErrNoLink, ifname, ns.path)
	}
	if err != nil {
		return nil, fmt.Errorf("looking at %s in the namespace at %q: %w", ifname, ns.path, err)
	}
	var ips []netip.Addr
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		addrs, err := globalAddresses(context.Background(), h, link, f)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			ips = append(ips, a.Addr())
		}
	}
	return ips, nil
}
