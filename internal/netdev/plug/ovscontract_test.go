package plug_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/ovslab"
	"fairlead.dev/fairlead/test/plugtest"
)

const portA = "3f1c2d4e-0000-4000-8000-00000000000a"

// onOVS returns an interface that is a port of Neutron.
func onOVS(containerID, address string) plug.Interface {
	return plug.Interface{
		ContainerID: containerID, Name: "eth0", MTU: 1400, MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 1},
		Addresses: []netip.Prefix{nettest.Prefix(address)},
		Binding:   v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: portA}},
	}
}

func TestOVS(t *testing.T) {
	var ovs *ovslab.OVS // of the running test
	var shut *ovslab.Shutter
	i := onOVS("c1", "10.7.0.5/24")
	// ctl runs ovs-vsctl with LINK for the host end.
	ctl := func(args ...string) func(*netlink.Handle, plug.Made) error {
		return func(_ *netlink.Handle, m plug.Made) error {
			for n := range args {
				args[n] = strings.ReplaceAll(args[n], "LINK", m.HostLink)
			}
			ovs.Ctl(args...)
			return nil
		}
	}
	plugtest.Run(t, plugtest.Case{
		Interface: i, HostLink: true,
		Host: func(tb testing.TB, s *link.Sockets) {
			tb.Helper()
			ovs, shut = ovslab.New(tb, s), ovslab.NewShutter(s)
		},
		New: func(s *link.Sockets) plug.Kind { return plug.OVS(s, ovs.Socket(), shut) },
		Invalid: map[string]plug.Interface{
			"binding must be ovs":              plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{} }),
			"mac of eth0 must be that of":      plugtest.Changed(i, func(i *plug.Interface) { i.MAC = nil }),
			"mtu of eth0 must be that of":      plugtest.Changed(i, func(i *plug.Interface) { i.MTU = 0 }),
			"bandwidth of eth0 must not be se": plugtest.Changed(i, func(i *plug.Interface) { i.Bandwidth = &plug.Bandwidth{} }),
			`ovs.bridge "br/int" must have no`: plugtest.Changed(i, func(i *plug.Interface) {
				i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br/int", PortID: portA}}
			}),
			`ovs.portID "" must be the ID`: plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{}} }),
		},
		Breaks: []plugtest.Break{
			{Name: "down", Difference: "is down", Repairs: true, Do: onEnd((*netlink.Handle).LinkSetDown)},
			{Name: "host end is gone", Difference: "is missing", Do: onEnd((*netlink.Handle).LinkDel)},
			{Name: "no port", Difference: "is no port of Open vSwitch", Repairs: true, Do: ctl("del-port", "LINK")},
			{Name: "another port of Neutron", Difference: `is port "other" of Neutron`, Repairs: true, Do: ctl("set", "Interface", "LINK", "external_ids:iface-id=other")},
			{Name: "another MAC", Difference: `with MAC "fa:16:3e:00:00:09"`, Repairs: true, Do: ctl("set", "Interface", "LINK", `external_ids:attached-mac="fa:16:3e:00:00:09"`)},
			{Name: "on another bridge", Difference: `is a port of "br9", not of bridge br-int`, Repairs: true, Do: ctl(
				"add-br", "br9", "--", "set", "bridge", "br9", "datapath_type=netdev", "--",
				"--id=@port", "get", "Port", "LINK", "--", "remove", "Bridge", "br-int", "ports", "@port", "--", "add", "Bridge", "br9", "ports", "@port",
			)},
			{Name: "bridge is gone", Difference: "bridge br-int of eth0 is missing in Open vSwitch", Do: ctl("del-br", "br-int")},
			{Name: "another program has the port", Difference: "is no port of Open vSwitch", Do: ctl("del-port", "LINK", "--",
				"add-port", "br-int", "tap1", "--", "set", "Interface", "tap1", "type=internal", "external_ids:iface-id="+portA)},
		},
		// The row is there, and the address is not.
		Leave: func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface) {
			tb.Helper()
			host := plug.HostName(i.ContainerID, i.Name)
			nettest.AddCable(tb, s.Namespace(), host, 0, nettest.Cable{To: ns, Name: i.Name, MTU: i.MTU})
			nettest.Must(tb, nettest.OpenHandle(tb, s.Namespace()).LinkSetAlias(nettest.LinkNamed(tb, s.Namespace(), host), "fairlead c1 eth0 ovs:br-int"))
			ovs.Ctl("add-port", "br-int", host, "--", "set", "Interface", host, "external_ids:iface-id="+portA,
				"external_ids:fairlead=true", "external_ids:fairlead-container=c1", "external_ids:fairlead-interface=eth0")
		},
	})
}
