package guest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"fairlead.dev/fairlead/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func needVM(t *testing.T) {
	t.Helper()
	if os.Getenv("FAIRLEAD_VM") != "1" {
		t.Skip("runs in the VM: make vm-test")
	}
}

// Each link is made on a parent in a namespace, and has its mode when it is read.
func TestLinks(t *testing.T) {
	needVM(t)
	on := true
	for _, c := range []struct {
		name, kind string
		make       func(netlink.LinkAttrs) netlink.Link
		as         func(made netlink.Link) bool
	}{
		{"dummy", "dummy", dummy, nil},
		{"vlan", "vlan", func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Vlan{LinkAttrs: a, VlanId: 100, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
		}, func(l netlink.Link) bool { return l.(*netlink.Vlan).VlanId == 100 }},
		{"ipvlan l2", "ipvlan", ipvlan(netlink.IPVLAN_MODE_L2), isIPVlan(netlink.IPVLAN_MODE_L2)},
		{"ipvlan l3", "ipvlan", ipvlan(netlink.IPVLAN_MODE_L3), isIPVlan(netlink.IPVLAN_MODE_L3)},
		{"ipvlan l3s", "ipvlan", ipvlan(netlink.IPVLAN_MODE_L3S), isIPVlan(netlink.IPVLAN_MODE_L3S)},
		{"macvlan bridge", "macvlan", macvlan(netlink.MACVLAN_MODE_BRIDGE), isMacvlan(netlink.MACVLAN_MODE_BRIDGE)},
		{"macvlan private", "macvlan", macvlan(netlink.MACVLAN_MODE_PRIVATE), isMacvlan(netlink.MACVLAN_MODE_PRIVATE)},
		{"macvlan vepa", "macvlan", macvlan(netlink.MACVLAN_MODE_VEPA), isMacvlan(netlink.MACVLAN_MODE_VEPA)},
		{"macvlan passthru", "macvlan", macvlan(netlink.MACVLAN_MODE_PASSTHRU), isMacvlan(netlink.MACVLAN_MODE_PASSTHRU)},
		{
			"vrf", "vrf", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Vrf{LinkAttrs: a, Table: 10} },
			func(l netlink.Link) bool { return l.(*netlink.Vrf).Table == 10 },
		},
		{"veth", "veth", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Veth{LinkAttrs: a, PeerName: "peer0"} }, nil},
		{
			"vxlan", "vxlan", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Vxlan{LinkAttrs: a, VxlanId: 42, Port: 4789} },
			func(l netlink.Link) bool { return l.(*netlink.Vxlan).VxlanId == 42 },
		},
		{"bridge that filters VLANs", "bridge", func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Bridge{LinkAttrs: a, VlanFiltering: &on}
		}, func(l netlink.Link) bool { b := l.(*netlink.Bridge); return b.VlanFiltering != nil && *b.VlanFiltering }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := nettest.OpenHandle(t, nettest.NewNamespace(t))
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "parent0"
			p := dummy(attrs)
			if err := errors.Join(h.LinkAdd(p), h.LinkSetUp(p)); err != nil {
				t.Fatal(err)
			}
			attrs = netlink.NewLinkAttrs()
			attrs.Name = "made0"
			if c.kind == "vlan" || c.kind == "ipvlan" || c.kind == "macvlan" {
				attrs.ParentIndex = p.Attrs().Index
			}
			l := c.make(attrs)
			if err := errors.Join(h.LinkAdd(l), h.LinkSetUp(l)); err != nil {
				t.Fatal(err)
			}
			made, err := h.LinkByName("made0")
			if err != nil {
				t.Fatal(err)
			}
			if made.Type() != c.kind || c.as != nil && !c.as(made) {
				t.Errorf("made %#v; want a link as %s", made, c.name)
			}
		})
	}
}

// A port of a bridge that filters VLANs is isolated and has a VLAN of its own.
func TestPortOfBridge(t *testing.T) {
	needVM(t)
	h := nettest.OpenHandle(t, nettest.NewNamespace(t))
	on := true
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), VlanFiltering: &on}
	bridge.Name = "bridge0"
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "port0"
	port := dummy(attrs)
	err := errors.Join(
		h.LinkAdd(bridge), h.LinkAdd(port), h.LinkSetMaster(port, bridge),
		h.LinkSetIsolated(port, true), h.BridgeVlanAdd(port, 100, true, true, false, false),
	)
	if err != nil {
		t.Fatal(err)
	}
	info, err := h.LinkGetProtinfo(port)
	if err != nil || !info.Isolated {
		t.Errorf("the port is isolated: %t, %v; want true", info.Isolated, err)
	}
	vlans, err := h.BridgeVlanList()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, v := range vlans[int32(port.Attrs().Index)] {
		found = found || *v == nl.BridgeVlanInfo{Flags: nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED, Vid: 100}
	}
	if !found {
		t.Errorf("the port has the VLANs %v; want 100 as its own", vlans)
	}
}

// The VM runs a test in the directory of its package, and takes what it writes.
func TestFiles(t *testing.T) {
	needVM(t)
	if _, err := os.Stat("guest_test.go"); err != nil {
		t.Errorf("the directory of the package: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "written" {
		t.Errorf("read %q, %v; want %q", got, err, "written")
	}
}

func dummy(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} }

func ipvlan(mode netlink.IPVlanMode) func(netlink.LinkAttrs) netlink.Link {
	return func(a netlink.LinkAttrs) netlink.Link { return &netlink.IPVlan{LinkAttrs: a, Mode: mode} }
}

func isIPVlan(mode netlink.IPVlanMode) func(netlink.Link) bool {
	return func(l netlink.Link) bool { return l.(*netlink.IPVlan).Mode == mode }
}

func macvlan(mode netlink.MacvlanMode) func(netlink.LinkAttrs) netlink.Link {
	return func(a netlink.LinkAttrs) netlink.Link { return &netlink.Macvlan{LinkAttrs: a, Mode: mode} }
}

func isMacvlan(mode netlink.MacvlanMode) func(netlink.Link) bool {
	return func(l netlink.Link) bool { return l.(*netlink.Macvlan).Mode == mode }
}
