package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// CleanupHost removes everything of Fairlead from the host: rules and routes, the
// interfaces that pods finds on the host, the bridges and the tunnel. It returns
// descriptions of the removed objects, and continues after an error. The settings under
// /proc/sys stay, because other programs may rely on them by now.
func (k *Kernel) CleanupHost(ctx context.Context, pods *kinds.Table) (removed []string, err error) {
	k.applying.Lock()
	defer k.applying.Unlock()
	h, err := k.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var errs []error

	rules, err := ourRules(ctx, h)
	errs = append(errs, err)
	for _, r := range rules {
		if err := deleteRule(h, r); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, describeRule(r))
	}
	routes, err := ourRoutes(ctx, h)
	errs = append(errs, err)
	for _, r := range routes {
		if err := deleteRoute(h, r); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "route "+describe(r))
	}
	lo := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: loopback}}
	err = h.AddrDel(lo, &netlink.Addr{IPNet: link.ToIPNet(netip.PrefixFrom(standIn, standIn.BitLen()))})
	if err == nil {
		removed = append(removed, "address "+standIn.String()+" of lo")
	} else if !errors.Is(err, unix.EADDRNOTAVAIL) {
		errs = append(errs, fmt.Errorf("removing address %v of lo: %w", standIn, err))
	}
	links, err := link.Dump(ctx, "listing links", h.LinkList)
	errs = append(errs, err)
	ends, err := pods.RemoveAll(ctx)
	removed, errs = append(removed, ends...), append(errs, err)
	for _, dev := range links {
		a := dev.Attrs()
		if a.Alias != bridgeAlias && a.Alias != tunnelAlias || dev.Type() == "veth" {
			continue
		}
		if err := h.LinkDel(dev); err != nil && !link.IsNoLink(err) {
			errs = append(errs, fmt.Errorf("removing %s %s: %w", dev.Type(), a.Name, err))
			continue
		}
		removed = append(removed, dev.Type()+" "+a.Name)
	}
	return removed, errors.Join(errs...)
}
