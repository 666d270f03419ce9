package link

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// GlobalAddresses lists the addresses of one family by which others may reach a link: of
// global scope, not deprecated, not temporary (RFC 8981). usable are those from which the host can
// send now: not those that the kernel still compares with others' (IPv6).
func GlobalAddresses(ctx context.Context, h *netlink.Handle, link netlink.Link, fam int) (all, usable []netip.Prefix, err error) {
	addrs, err := Dump(ctx, "listing the addresses of "+link.Attrs().Name, func() ([]netlink.Addr, error) {
		return h.AddrList(link, fam)
	})
	if err != nil {
		return nil, nil, err
	}
	const passing = unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY
	for _, a := range addrs {
		if a.Scope != int(netlink.SCOPE_UNIVERSE) || fam == unix.AF_INET6 && a.Flags&passing != 0 {
			continue
		}
		ones, _ := a.Mask.Size()
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		p := netip.PrefixFrom(ip.Unmap(), ones)
		all = append(all, p)
		if fam != unix.AF_INET6 || a.Flags&unix.IFA_F_TENTATIVE == 0 {
			usable = append(usable, p)
		}
	}
	return all, usable, nil
}

// IsNoLink reports whether an error of the library means that there is no such link.
func IsNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// ToPrefix converts an address of the library and its prefix length. It returns false if
// n is nil or invalid.
func ToPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if bits == 32 {
		ip = ip.Unmap()
	}
	return netip.PrefixFrom(ip, ones), true
}

// ToIPNet converts a prefix to the library's type.
func ToIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
