package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetUDP makes the kernel forget the UDP flows to ports of the host. A flow
// keeps the translation that it began with for as long as packets come, so one
// that began before a rule was there, or went to a pod that is gone, would never
// come to the right place. An address that is unspecified stands for all of the
// host's of its family, one that is not valid for all.
func (k *Kernel) ForgetUDP(ctx context.Context, ports []netip.AddrPort) error {
	if len(ports) == 0 {
		return nil
	}
	var h *netlink.Handle
	err := k.inHost(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer h.Close()
	addresses, err := dump(ctx, "listing the host's addresses", func() ([]netlink.Addr, error) {
		return h.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return err
	}
	f := flowsTo{ports: map[uint16][]netip.Addr{}, host: map[netip.Addr]bool{}}
	for _, p := range ports {
		f.ports[p.Port()] = append(f.ports[p.Port()], p.Addr())
	}
	for _, a := range addresses {
		if p, ok := toPrefix(a.IPNet); ok {
			f.host[p.Addr()] = true
		}
	}
	families := []netlink.InetFamily{unix.AF_INET}
	if k.ipv6 {
		families = append(families, unix.AF_INET6)
	}
	for _, family := range families {
		_, err := dump(ctx, "forgetting UDP flows", func() ([]struct{}, error) {
			_, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
			return nil, err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// flowsTo matches the UDP flows that were sent to one of the ports of the host.
type flowsTo struct {
	ports map[uint16][]netip.Addr
	host  map[netip.Addr]bool
}

// MatchConntrackFlow is called by the library for each flow.
func (f flowsTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	to = to.Unmap()
	for _, at := range f.ports[flow.Forward.DstPort] {
		switch {
		case at == to:
			return true
		case at.IsValid() && (!at.IsUnspecified() || at.Is4() != to.Is4()):
		case f.host[to] || to.IsLoopback():
			return true
		}
	}
	return false
}
