package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Numbers of the kernel that package nl lacks (linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_internals.h in Linux).
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1
	filterProtocol     = 1 << 3
	filterDstPort      = 1 << 5
)

// conntrack returns a request about the flows of a family.
func conntrack(command, flags int, family netlink.InetFamily) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|command, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	return req
}

// flowsRequest asks for the flows of a protocol at any address: those to the port, if there is one alone.
func flowsRequest(family netlink.InetFamily, ports []FlowTo) *nl.NetlinkRequest {
	req := conntrack(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{ports[0].Protocol})
	flags := uint32(filterProtocol)
	if one := ports[0].Port(); !slices.ContainsFunc(ports, func(p FlowTo) bool { return p.Port() != one }) {
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, one))
		flags |= filterDstPort
	}
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(ctaFilterOrigFlags, nl.Uint32Attr(flags))
	req.AddData(tuple)
	req.AddData(filter)
	return req
}

// forgetFlowsTo makes the kernel forget the flows of a family and a protocol to ports of the host.
func (k *Kernel) forgetFlowsTo(ctx context.Context, family netlink.InetFamily, ports []FlowTo, host map[netip.Addr]bool) error {
	what := fmt.Sprintf("forgetting the flows to port %d", ports[0].Port())
	if len(ports) > 1 {
		what += fmt.Sprintf(" and %d more", len(ports)-1)
	}
	byPort := map[uint16][]FlowTo{}
	for _, p := range ports {
		byPort[p.Port()] = append(byPort[p.Port()], p)
	}
	all, err := link.Dump(ctx, what, func() (all [][]byte, err error) {
		err = k.In(func() error {
			all, err = flowsRequest(family, ports).Execute(unix.NETLINK_NETFILTER, 0)
			return err
		})
		return all, err
	})
	if err != nil {
		return err
	}
	return k.In(func() error {
		var errs []error
		for _, raw := range all {
			to, ok := flowOf(raw)
			if !ok || !slices.ContainsFunc(byPort[to.Port()], func(p FlowTo) bool { return p.has(to, host) }) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, fmt.Errorf("%s: %w", what, err))...)
			}
			req := conntrack(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
			req.AddRawData(raw[nl.SizeofNfgenmsg:])
			if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
			}
		}
		return errors.Join(errs...)
	})
}

// has reports whether a flow is one of these. host has the addresses of the host.
func (p FlowTo) has(flow FlowTo, host map[netip.Addr]bool) bool {
	at, to := p.Addr(), flow.Addr()
	switch {
	case flow.Protocol != p.Protocol || flow.Port() != p.Port():
		return false
	case at == to:
		return true
	case at.IsValid() && (!at.IsUnspecified() || at.Is4() != to.Is4()):
		return false
	}
	return host[to] || to.IsLoopback()
}

// flowOf returns the protocol and the destination of a flow, before any translation.
func flowOf(raw []byte) (f FlowTo, ok bool) {
	if len(raw) < nl.SizeofNfgenmsg {
		return f, false
	}
	tuple := nested(nested(raw[nl.SizeofNfgenmsg:])[nl.CTA_TUPLE_ORIG])
	ip, proto := nested(tuple[nl.CTA_TUPLE_IP]), nested(tuple[nl.CTA_TUPLE_PROTO])
	to := ip[nl.CTA_IP_V4_DST]
	if to == nil {
		to = ip[nl.CTA_IP_V6_DST]
	}
	addr, isAddr := netip.AddrFromSlice(to)
	number, port := proto[nl.CTA_PROTO_NUM], proto[nl.CTA_PROTO_DST_PORT]
	if !isAddr || len(number) != 1 || len(port) != 2 {
		return f, false
	}
	return FlowTo{Protocol: number[0], AddrPort: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))}, true
}

// nested returns the attributes in a value by number; nil if it cannot be read.
func nested(value []byte) map[uint16][]byte {
	all, err := nl.ParseRouteAttrAsMap(value)
	if err != nil {
		return nil
	}
	out := make(map[uint16][]byte, len(all))
	for number, a := range all {
		out[number&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return out
}
