package plug_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

// onEnd and onBridgeOf call do with a host end and with its bridge.
func onEnd(do func(*netlink.Handle, netlink.Link) error) func(*netlink.Handle, plug.Made) error {
	return func(h *netlink.Handle, m plug.Made) error { return onLink(h, m.HostLink, do) }
}

func onBridgeOf(do func(*netlink.Handle, netlink.Link) error) func(*netlink.Handle, plug.Made) error {
	return func(h *netlink.Handle, m plug.Made) error { return onLink(h, m.Bridge, do) }
}

func onLink(h *netlink.Handle, name string, do func(*netlink.Handle, netlink.Link) error) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return do(h, l)
}

func TestBridge(t *testing.T) {
	i := plugtest.Default(v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: nettest.DefaultBridge}})
	plugtest.Run(t, plugtest.Case{
		New: plug.Bridge, Interface: i, HostLink: true,
		Invalid: map[string]plug.Interface{
			"binding must be bridge":             plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{} }),
			`bridge name "a/b" must have no`:     plugtest.Changed(i, func(i *plug.Interface) { i.Binding.Bridge = &v1alpha1.BridgeBinding{Name: "a/b"} }),
			"mtu 67 of eth0 must be from 68 to":  plugtest.Changed(i, func(i *plug.Interface) { i.MTU = 67 }),
			`container ID "" must be one word`:   plugtest.Changed(i, func(i *plug.Interface) { i.ContainerID = "" }),
			`interface name "" must not be empt`: plugtest.Changed(i, func(i *plug.Interface) { i.Name = "" }),
		},
		Breaks: []plugtest.Break{
			{Name: "down", Difference: "is down", Repairs: true, Do: onEnd((*netlink.Handle).LinkSetDown)},
			{Name: "in another group", Difference: "is in group 0, not 158", Repairs: true, Do: onEnd(func(h *netlink.Handle, end netlink.Link) error { return h.LinkSetGroup(end, 0) })},
			{Name: "on no bridge", Difference: `is a port of "", not of bridge fairlead0`, Repairs: true, Do: onEnd((*netlink.Handle).LinkSetNoMaster)},
			{Name: "on another bridge", Difference: `is a port of "br9", not of bridge fairlead0`, Repairs: true, Do: onEnd(func(h *netlink.Handle, end netlink.Link) error {
				other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br9"}}
				return errors.Join(h.LinkAdd(other), h.LinkSetMaster(end, other))
			})},
			{Name: "host end is gone", Difference: "is missing", Do: onEnd((*netlink.Handle).LinkDel)},
			{Name: "another link in its place", Difference: "does not lead to its host end", Do: onEnd(func(h *netlink.Handle, end netlink.Link) error {
				other := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "other", MasterIndex: end.Attrs().MasterIndex}}
				return errors.Join(h.LinkDel(end), h.LinkAdd(other), h.LinkSetName(other, end.Attrs().Name), h.LinkSetUp(other))
			})},
			// The host part of the daemon repairs the bridge.
			{Name: "bridge is down", Difference: "bridge fairlead0 of eth0 is missing or down", Do: onBridgeOf((*netlink.Handle).LinkSetDown)},
			{Name: "bridge is gone", Difference: "bridge fairlead0 of eth0 is missing or down", Do: onBridgeOf((*netlink.Handle).LinkDel)},
		},
		// The alias is set after the link is made.
		Leave: func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface) {
			tb.Helper()
			host := plug.HostName(i.ContainerID, i.Name)
			bridge := nettest.LinkNamed(tb, s.Namespace(), nettest.DefaultBridge).Attrs().Index
			nettest.AddCable(tb, s.Namespace(), host, bridge, nettest.Cable{To: ns, Name: i.Name, MTU: i.MTU})
		},
	})
}

func TestAddressOnly(t *testing.T) {
	i := plugtest.Default(v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}})
	plugtest.Run(t, plugtest.Case{
		New: func(*link.Sockets) plug.Kind { return plug.AddressOnly() }, Interface: i, Foreign: true,
		Invalid: map[string]plug.Interface{
			"binding must be addressOnly": plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{} }),
			"must not be set":             plugtest.Changed(i, func(i *plug.Interface) { i.Bandwidth = &plug.Bandwidth{} }),
			"address":                     plugtest.Changed(i, func(i *plug.Interface) { i.Addresses = []netip.Prefix{{}} }),
		},
	})
}
