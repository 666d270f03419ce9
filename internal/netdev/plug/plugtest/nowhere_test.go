package plugtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/nettest"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/plugtest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// nowhere is a kind that makes a link which leads nowhere, inside the sandbox alone: as
// macvlan it leaves nothing on the host.
type nowhere struct{}

func alias(containerID, name string) string { return link.AliasPrefix + containerID + " " + name }

func (nowhere) Validate(i plug.Interface) error {
	if i.MTU < link.MinMTUv6 {
		return fmt.Errorf("%w: mtu %d of %s must be at least %d bytes", link.ErrInvalid, i.MTU, i.Name, link.MinMTUv6)
	}
	return nil
}

func (nowhere) Plan(at link.Place, i plug.Interface) plug.Made {
	return plug.Made{Kind: "nowhere", ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
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
		l := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: i.Name, MTU: i.MTU}}
		err := h.LinkAdd(l)
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: %s", link.ErrExists, i.Name)
		}
		if err != nil {
			return err
		}
		err = h.LinkSetAlias(l, alias(i.ContainerID, i.Name))
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
		case link.IsNoLink(err), err == nil && l.Attrs().Alias != alias(m.ContainerID, m.Name):
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
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	defer h.Close()
	return fn(h)
}

// A kind that is not of this build passes the tests with what one file has.
func TestKindInOneFile(t *testing.T) {
	i := plug.Interface{
		ContainerID: "c1", Name: "net1", MTU: 1400,
		Addresses: []netip.Prefix{nettest.Prefix("192.0.2.7/24")},
	}
	small := i
	small.MTU = 100
	plugtest.Run(t, plugtest.Case{
		New: func(*link.Sockets) plug.Kind { return nowhere{} }, Interface: i,
		Invalid: map[string]plug.Interface{"mtu 100 of net1 must be at least 1280 bytes": small},
	})
}
