package netdev

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// globalAddresses lists the addresses of one family that others may use to
// reach us: global, not about to expire, not one of the passing ones (RFC 8981).
func globalAddresses(ctx context.Context, h *netlink.Handle, link netlink.Link, fam int) ([]netip.Prefix, error) {
	addrs, err := dump(ctx, "listing the addresses of "+link.Attrs().Name, func() ([]netlink.Addr, error) {
		return h.AddrList(link, fam)
	})
	if err != nil {
		return nil, err
	}
	const passing = unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY
	var out []netip.Prefix
	for _, a := range addrs {
		if a.Scope != int(netlink.SCOPE_UNIVERSE) || fam == unix.AF_INET6 && a.Flags&passing != 0 {
			continue
		}
		ones, _ := a.Mask.Size()
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return out, nil
}
