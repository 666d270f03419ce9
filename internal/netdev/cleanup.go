package netdev

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
)

// removalsAtOnce bounds the threads that wait in the kernel.
const removalsAtOnce = 32

// CleanupHost removes everything of ours from the host: rules and routes, the
// host ends of all pods (which takes their interfaces away), the bridges and
// the tunnel. It
// returns in words what it removed, and goes on after an error. The settings
// under /proc/sys stay: others may rely on them by now.
func (k *Kernel) CleanupHost(ctx context.Context) (removed []string, err error) {
	k.applying.Lock()
	defer k.applying.Unlock()
	h, err := k.handle()
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
	links, err := dump(ctx, "listing links", h.LinkList)
	errs = append(errs, err)
	ends, err := k.removeHostEnds(ctx, links)
	removed, errs = append(removed, ends...), append(errs, err)
	for _, link := range links {
		a := link.Attrs()
		if a.Alias != bridgeAlias && a.Alias != tunnelAlias || link.Type() == "veth" {
			continue
		}
		if err := h.LinkDel(link); err != nil && !isNoLink(err) {
			errs = append(errs, fmt.Errorf("removing %s %s: %w", link.Type(), a.Name, err))
			continue
		}
		removed = append(removed, link.Type()+" "+a.Name)
	}
	return removed, errors.Join(errs...)
}

func (k *Kernel) removeHostEnds(ctx context.Context, links []netlink.Link) ([]string, error) {
	var (
		mu      sync.Mutex
		removed []string
		errs    []error
		group   errgroup.Group
	)
	group.SetLimit(removalsAtOnce)
	ends := shapers(links)
	for _, link := range links {
		if l, ok := hostLink(link); ok {
			ends = append(ends, l)
		}
	}
	for _, l := range ends {
		group.Go(func() error {
			err := k.Detach(ctx, l.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			removed = append(removed, fmt.Sprintf("%s (%s of container %s)", l.Name, l.Interface, l.ContainerID))
			return nil
		})
	}
	_ = group.Wait() // errs has them all
	return removed, errors.Join(errs...)
}
