package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// FlowTo are the flows of a protocol (unix.IPPROTO_UDP or IPPROTO_SCTP) to a port of the host. An
// unspecified address stands for all addresses of the host in its family, an invalid one
// for all addresses of the host.
type FlowTo struct {
	Protocol uint8
	netip.AddrPort
}

// ForgetFlows makes the kernel forget the flows to ports of the host. A flow keeps its
// first translation as long as packets come. A flow that began before its rule existed,
// or that went to a pod which is gone, would therefore never reach the right pod. The kernel
// looks for the flows of a port, or of a protocol if there are several ports; before Linux 5.8 all
// flows are read.
func (k *Kernel) ForgetFlows(ctx context.Context, ports []FlowTo) error {
	if len(ports) == 0 {
		return nil
	}
	h, err := k.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	addresses, err := link.Dump(ctx, "listing the host's addresses", func() ([]netlink.Addr, error) {
		return h.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return err
	}
	host := map[netip.Addr]bool{}
	for _, a := range addresses {
		if p, ok := link.ToPrefix(a.IPNet); ok {
			host[p.Addr()] = true
		}
	}
	type table struct {
		family   netlink.InetFamily
		protocol uint8
	}
	of := map[table][]FlowTo{}
	for _, p := range ports {
		for _, family := range k.families() {
			if at := p.Addr(); !at.IsValid() || link.Family(at) == int(family) {
				of[table{family, p.Protocol}] = append(of[table{family, p.Protocol}], p)
			}
		}
	}
	var errs []error
	for t, ports := range of {
		errs = append(errs, k.forgetFlowsTo(ctx, t.family, ports, host))
	}
	return errors.Join(errs...)
}

// ForgetMasqueraded makes the kernel forget the flows from addresses in some prefixes to
// addresses in others whose source was translated. A flow keeps its translation as long
// as packets come. A flow that began before its destination was known as part of the
// cluster would therefore keep the node's address. Established TCP connections are left
// as they are: the kernel would take the rest of a connection for a new one.
func (k *Kernel) ForgetMasqueraded(ctx context.Context, from, to []netip.Prefix) error {
	if len(from) == 0 || len(to) == 0 {
		return nil
	}
	h, err := k.flows()
	if err != nil {
		return err
	}
	defer h.Close()
	return k.forget(ctx, h, "forgetting masqueraded flows", masqueraded{from: from, to: to})
}

// flows opens a socket for the host's connection tracking.
func (k *Kernel) flows() (h *netlink.Handle, err error) {
	err = k.In(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return h, nil
}

func (k *Kernel) families() []netlink.InetFamily {
	if k.IPv6 {
		return []netlink.InetFamily{unix.AF_INET, unix.AF_INET6}
	}
	return []netlink.InetFamily{unix.AF_INET}
}

// forget makes the kernel forget the flows that a filter matches.
func (k *Kernel) forget(ctx context.Context, h *netlink.Handle, what string, f netlink.CustomConntrackFilter) error {
	for _, family := range k.families() {
		_, err := link.Dump(ctx, what, func() ([]struct{}, error) {
			_, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
			return nil, err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// tcpOpening is the state of a TCP connection whose first packet has no answer yet
// (TCP_CONNTRACK_SYN_SENT).
const tcpOpening = 1

// masqueraded matches flows whose source was translated, and which were sent from one
// group of prefixes and are answered from another.
type masqueraded struct{ from, to []netip.Prefix }

// MatchConntrackFlow is called by the library for each flow.
func (f masqueraded) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	switch flow.Forward.Protocol {
	case unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
	case unix.IPPROTO_TCP:
		if tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP); !ok || tcp.State != tcpOpening {
			return false
		}
	default:
		return false
	}
	return !flow.Forward.SrcIP.Equal(flow.Reverse.DstIP) && within(f.from, flow.Forward.SrcIP) && within(f.to, flow.Reverse.SrcIP)
}

// within reports whether an address is in one of the prefixes.
func within(prefixes []netip.Prefix, ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	a = a.Unmap()
	return ok && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
