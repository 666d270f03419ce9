package plugtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// KindNowhere is the name of the kind Nowhere. Binding has no such member.
const KindNowhere = "nowhere"

// nowhere is a kind whose interface is a link without a peer, in the sandbox's namespace
// alone: like macvlan it has no link on the host.
type nowhere struct{}

// Nowhere returns the kind KindNowhere, which is not part of this build.
func Nowhere() plug.Kind { return nowhere{} }

func (nowhere) Validate(i plug.Interface) error {
	if i.MTU < link.MinMTUv6 {
		return fmt.Errorf("%w: mtu %d of %s must be at least %d bytes", link.ErrInvalid, i.MTU, i.Name, link.MinMTUv6)
	}
	return nil
}

func (nowhere) Plan(at link.Place, i plug.Interface) plug.Made {
	return plug.Made{Kind: KindNowhere, ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
}

func (d nowhere) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) (err error) {
	if err := d.Validate(i); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m := d.Plan(ns.Place(), i)
	if err := d.Remove(ctx, m); err != nil {
		return err
	}
	return inside(ns, func(h *netlink.Handle) error {
		l := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: i.Name, MTU: i.MTU, HardwareAddr: i.MAC}}
		err := h.LinkAdd(l)
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: %s", link.ErrExists, i.Name)
		}
		if err != nil {
			return err
		}
		err = h.LinkSetAlias(l, link.OwnerAlias(i.ContainerID, i.Name))
		for _, a := range i.Addresses {
			err = errors.Join(err, h.AddrAdd(l, &netlink.Addr{IPNet: link.ToIPNet(a)}))
		}
		if err = errors.Join(err, h.LinkSetUp(l)); err != nil {
			return errors.Join(err, h.LinkDel(l))
		}
		return nil
	})
}

func (nowhere) Remove(_ context.Context, m plug.Made) error {
	ns, err := m.Namespace.Open()
	if errors.Is(err, link.ErrNotNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return inside(ns, func(h *netlink.Handle) error {
		l, err := h.LinkByName(m.Name)
		switch {
		case link.IsNoLink(err), err == nil && l.Attrs().Alias != link.OwnerAlias(m.ContainerID, m.Name):
			return nil
		case err != nil:
			return err
		}
		return h.LinkDel(l)
	})
}

func (nowhere) Gone(_ context.Context, m plug.Made) (bool, error) { return m.Namespace.Gone(), nil }

func (nowhere) Differences(context.Context, plug.Made, plug.Inspected) ([]string, error) {
	return nil, nil
}

// inside runs fn with a socket in a namespace.
func inside(ns *link.Namespace, fn func(h *netlink.Handle) error) error {
	h, err := ns.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	return fn(h)
}
