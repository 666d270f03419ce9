package child_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

// parent is the name of the link on the host that the interfaces of these tests are on.
const parent = "p0"

func addParent(tb testing.TB, s *link.Sockets) {
	tb.Helper()
	nettest.AddDevice(tb, s, parent)
}

func macvlan(mode string) v1alpha1.Binding {
	return v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: parent, Mode: mode}}
}

func ipvlan(mode string) v1alpha1.Binding {
	return v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: parent, Mode: mode}}
}

func vlan(id int32) v1alpha1.Binding {
	return v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: parent, ID: id}}
}

// children are the kinds with a parent, each with a valid interface.
var children = []struct {
	name, linkType string
	kind           func(*link.Sockets) plug.Kind
	binding        v1alpha1.Binding
	invalid        map[string]v1alpha1.Binding
}{
	{"macvlan", "macvlan", child.Macvlan, macvlan("bridge"), map[string]v1alpha1.Binding{
		`mode "source" of net1 must be one of`: macvlan("source"),
		`parent "a b" of net1 must have no`:    {Macvlan: &v1alpha1.MacvlanBinding{Parent: "a b", Mode: "vepa"}},
	}},
	{"ipvlan", "ipvlan", child.IPVLAN, ipvlan("l2"), map[string]v1alpha1.Binding{
		`mode "l4" of net1 must be one of`: ipvlan("l4"),
	}},
	{"vlan", "vlan", child.VLAN, vlan(100), map[string]v1alpha1.Binding{
		"VLAN 0 of net1 must be 1 to 4094":    vlan(0),
		"VLAN 4095 of net1 must be 1 to 4094": vlan(4095),
	}},
}

func TestChildren(t *testing.T) {
	for _, c := range children {
		t.Run(c.name, func(t *testing.T) {
			nettest.NeedLinkType(t, c.linkType)
			nettest.NeedIPv6(t)
			i := plugtest.Further(c.binding)
			invalid := map[string]plug.Interface{
				"binding must be " + c.name:      plugtest.Changed(i, func(i *plug.Interface) { i.Binding = v1alpha1.Binding{} }),
				"bandwidth of net1 must not be":  plugtest.Changed(i, func(i *plug.Interface) { i.Bandwidth = &plug.Bandwidth{} }),
				"must not be above the 1500 byt": plugtest.Changed(i, func(i *plug.Interface) { i.MTU = 1501 }),
			}
			for says, b := range c.invalid {
				invalid[says] = plugtest.Changed(i, func(i *plug.Interface) { i.Binding = b })
			}
			tooLarge := invalid["must not be above the 1500 byt"]
			delete(invalid, "must not be above the 1500 byt") // Validate does not know the parent
			plugtest.Run(t, plugtest.Case{
				New: c.kind, Interface: i, Host: addParent, Invalid: invalid,
				Breaks: []plugtest.Break{
					{Name: "parent is down", Difference: "parent p0 of net1 is down", Do: onParentOf((*netlink.Handle).LinkSetDown)},
					{Name: "parent is gone", Difference: "parent p0 of net1 is missing", Do: onParentOf((*netlink.Handle).LinkDel)},
					{Name: "another parent", Difference: "interface net1 is not on its parent p0", Do: onParentOf(func(h *netlink.Handle, l netlink.Link) error {
						return errors.Join(h.LinkSetDown(l), h.LinkSetName(l, "former"), h.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: parent}}))
					})},
				},
				// The alias is set after the link is made.
				Leave: func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface) {
					tb.Helper()
					nettest.Must(tb, c.kind(s).Make(tb.Context(), ns, i))
					h := nettest.OpenHandle(tb, ns)
					nettest.Must(tb, h.LinkSetAlias(nettest.LinkNamed(tb, ns, i.Name), ""))
				},
			})
			t.Run("UsableAtOnce", func(t *testing.T) { usableAtOnce(t, c.kind, i) })
			t.Run("MTU", func(t *testing.T) { mtuOfParent(t, c.kind, i, tooLarge) })
			t.Run("LayerTwoOnly", func(t *testing.T) { layerTwoOnly(t, c.kind, i) })
			t.Run("NoParent", func(t *testing.T) { noParent(t, c.kind, i) })
			t.Run("Held", func(t *testing.T) { heldNamespace(t, c.kind, i) })
		})
	}
}

func onParentOf(do func(*netlink.Handle, netlink.Link) error) func(*netlink.Handle, plug.Made) error {
	return func(h *netlink.Handle, m plug.Made) error {
		parent, err := h.LinkByName(m.Parent)
		if err != nil {
			return err
		}
		return do(h, parent)
	}
}

func parentHost(t *testing.T) (*link.Sockets, *link.Namespace) {
	t.Helper()
	s := nettest.NewNode(t)
	addParent(t, s)
	return s, nettest.NewNamespace(t)
}

func inspected(t *testing.T, ns *link.Namespace, name string) plug.Inspected {
	t.Helper()
	all, err := plug.Namespaces{}.Inspect(t.Context(), ns)
	nettest.Must(t, err)
	i, ok := all[name]
	if !ok {
		t.Fatalf("no interface %s", name)
	}
	return i
}

// An IPv6 address is not tested for duplicates, which would take a second.
func usableAtOnce(t *testing.T, kind func(*link.Sockets) plug.Kind, i plug.Interface) {
	s, pod := parentHost(t)
	nettest.Must(t, kind(s).Make(t.Context(), pod, i))
	h := nettest.OpenHandle(t, pod)
	all, err := h.AddrList(nettest.LinkNamed(t, pod, i.Name), netlink.FAMILY_V6)
	nettest.Must(t, err)
	for _, a := range all {
		if a.IP.Equal(net.ParseIP("fd00:1::5")) && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			return
		}
	}
	t.Errorf("addresses %v, want fd00:1::5 without a test", all)
}

// Without an MTU an interface has that of its parent, and no larger one.
func mtuOfParent(t *testing.T, kind func(*link.Sockets) plug.Kind, i, tooLarge plug.Interface) {
	s, pod := parentHost(t)
	k := kind(s)
	i.MTU, i.Addresses = 0, i.Addresses[:1]
	nettest.Must(t, k.Make(t.Context(), pod, i))
	if got := inspected(t, pod, i.Name).MTU; got != 1500 {
		t.Errorf("MTU %d, want that of the parent", got)
	}
	other := nettest.NewNamespace(t)
	if err := k.Make(t.Context(), other, tooLarge); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "mtu 1501 of net1 must not be above the 1500 bytes of parent p0") {
		t.Errorf("an MTU above the parent's: %v", err)
	}
	nettest.Steps(t, s, link.SetLink(parent, "mtu", nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(1200))))
	i.Addresses = append(i.Addresses, nettest.Prefix("fd00::5/64"))
	if err := k.Make(t.Context(), other, i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "at least 1280") {
		t.Errorf("IPv6 on a parent of 1200 bytes: %v", err)
	}
	wantLinks(t, other, "lo")
}

// An interface without addresses is up, with its MAC.
func layerTwoOnly(t *testing.T, kind func(*link.Sockets) plug.Kind, i plug.Interface) {
	s, pod := parentHost(t)
	k := kind(s)
	i.Addresses, i.MAC = nil, net.HardwareAddr{2, 0, 0, 0, 0, 7}
	want := i.MAC.String()
	err := k.Make(t.Context(), pod, i)
	if i.Binding.IPVLAN != nil {
		if !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "ipvlan has the MAC of its parent") {
			t.Errorf("MAC for ipvlan: %v", err)
		}
		i.MAC = nil
		want = nettest.LinkNamed(t, s.Namespace(), parent).Attrs().HardwareAddr.String()
		err = k.Make(t.Context(), pod, i)
	}
	nettest.Must(t, err)
	if got := inspected(t, pod, i.Name); !got.Up || got.MAC != want {
		t.Errorf("interface %+v, want MAC %s", got, want)
	}
}

func noParent(t *testing.T, kind func(*link.Sockets) plug.Kind, i plug.Interface) {
	s, pod := parentHost(t)
	h := nettest.OpenHandle(t, s.Namespace())
	nettest.Must(t, h.LinkSetDown(nettest.LinkNamed(t, s.Namespace(), parent)))
	if err := kind(s).Make(t.Context(), pod, i); !errors.Is(err, link.ErrNoParent) || !strings.Contains(err.Error(), "p0, the parent of interface net1") {
		t.Errorf("the parent is down: %v", err)
	}
	nettest.Must(t, h.LinkDel(nettest.LinkNamed(t, s.Namespace(), parent)))
	if err := kind(s).Make(t.Context(), pod, i); !errors.Is(err, link.ErrNoParent) {
		t.Errorf("there is no parent: %v", err)
	}
	wantLinks(t, pod, "lo")
}

// An interface is removed from a namespace that a process holds after its path is gone.
func heldNamespace(t *testing.T, kind func(*link.Sockets) plug.Kind, i plug.Interface) {
	s, pod := parentHost(t)
	k := kind(s)
	nettest.Must(t, k.Make(t.Context(), pod, i))
	m := k.Plan(pod.Place(), i)
	hold(t, pod)
	endPath(t, pod)
	if gone, err := k.Gone(t.Context(), m); !gone || err != nil {
		t.Errorf("gone is %t, %v", gone, err)
	}
	nettest.Must(t, k.Remove(t.Context(), m))
	wantLinks(t, pod, "lo")
}

// The VLAN of a dead sandbox, whose namespace a process holds, is free. That of a living
// sandbox is not.
func TestVLANOfAnother(t *testing.T) {
	nettest.NeedLinkType(t, "vlan")
	s, pod := parentHost(t)
	k := child.VLAN(s)
	i := plugtest.Further(vlan(100))
	nettest.Must(t, k.Make(t.Context(), pod, i))
	second := plugtest.Changed(i, func(i *plug.Interface) { i.ContainerID = "c2" })
	other := nettest.NewNamespace(t)
	err := k.Make(t.Context(), other, second)
	if !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "VLAN 100 of parent p0 is in use by interface net1 of container c1") {
		t.Errorf("the VLAN of a living sandbox: %v", err)
	}
	wantLinks(t, pod, "lo", "net1")
	wantLinks(t, other, "lo")

	h := nettest.OpenHandle(t, pod)
	l := nettest.LinkNamed(t, pod, "net1")
	nettest.Must(t, h.LinkSetAlias(l, "mine"))
	if err := k.Make(t.Context(), other, second); !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "not Fairlead's") {
		t.Errorf("the VLAN of another program: %v", err)
	}
	nettest.Must(t, h.LinkSetAlias(l, fmt.Sprintf("fairlead c1 net1 %s", pod.Path())))

	hold(t, pod)
	endPath(t, pod)
	nettest.Must(t, k.Make(t.Context(), other, second))
	wantLinks(t, pod, "lo")
	wantLinks(t, other, "lo", "net1")

	nettest.Must(t, k.Remove(t.Context(), k.Plan(other.Place(), second)))
	node := nettest.OpenHandle(t, s.Namespace())
	nettest.Must(t, node.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "p0.100", ParentIndex: nettest.LinkNamed(t, s.Namespace(), parent).Attrs().Index}, VlanId: 100, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
	if err := k.Make(t.Context(), other, second); !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "link p0.100 of the node") {
		t.Errorf("a VLAN of the node: %v", err)
	}
}

func TestMacvlanModes(t *testing.T) {
	nettest.NeedLinkType(t, "macvlan")
	for mode, want := range map[string]netlink.MacvlanMode{
		"bridge": netlink.MACVLAN_MODE_BRIDGE, "private": netlink.MACVLAN_MODE_PRIVATE, "vepa": netlink.MACVLAN_MODE_VEPA, "passthru": netlink.MACVLAN_MODE_PASSTHRU,
	} {
		t.Run(mode, func(t *testing.T) {
			s, pod := parentHost(t)
			k := child.Macvlan(s)
			nettest.Must(t, k.Make(t.Context(), pod, plugtest.Further(macvlan(mode))))
			l, ok := nettest.LinkNamed(t, pod, "net1").(*netlink.Macvlan)
			if !ok || l.Mode != want {
				t.Errorf("link %+v, want mode %d", l, want)
			}
			its := nettest.LinkNamed(t, s.Namespace(), parent).Attrs().HardwareAddr.String()
			if passthru := mode == "passthru"; (l.HardwareAddr.String() == its) != passthru {
				t.Errorf("MAC %s beside the parent's %s", l.HardwareAddr, its)
			}
		})
	}
	s, pod := parentHost(t)
	i := plugtest.Further(macvlan("passthru"))
	i.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 7}
	if err := child.Macvlan(s).Make(t.Context(), pod, i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "has the MAC of its parent") {
		t.Errorf("MAC in mode passthru: %v", err)
	}
}

func TestIPVLANModes(t *testing.T) {
	nettest.NeedLinkType(t, "ipvlan")
	for mode, want := range map[string]netlink.IPVlanMode{"l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S} {
		t.Run(mode, func(t *testing.T) {
			s, pod := parentHost(t)
			nettest.Must(t, child.IPVLAN(s).Make(t.Context(), pod, plugtest.Further(ipvlan(mode))))
			if l, ok := nettest.LinkNamed(t, pod, "net1").(*netlink.IPVlan); !ok || l.Mode != want {
				t.Errorf("link %+v, want mode %d", l, want)
			}
		})
	}
}

// hold starts a process in a namespace, which holds it until the end of the test.
func hold(t *testing.T, ns *link.Namespace) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	nettest.Must(t, ns.Do(cmd.Start))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// endPath removes the path of a namespace, as a runtime does.
func endPath(t *testing.T, ns *link.Namespace) {
	t.Helper()
	nettest.DropPath(t, ns.Path())
	nettest.Must(t, os.Remove(ns.Path()))
}

func wantLinks(t *testing.T, ns *link.Namespace, want ...string) {
	t.Helper()
	if got := nettest.LinkNames(t, ns); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("links %v, want %v", got, want)
	}
}

// A parent that is named by its MAC is the link itself, not a link on it or its bridge,
// which have the MAC too. kuryr 2.3: the node guessed the link by its addresses.
func TestParentByMAC(t *testing.T) {
	nettest.NeedLinkType(t, "macvlan")
	s, ns := parentHost(t)
	h := nettest.OpenHandle(t, s.Namespace())
	p0 := nettest.LinkNamed(t, s.Namespace(), parent)
	mac := net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}
	nettest.Must(t, errors.Join(
		h.LinkSetHardwareAddr(p0, mac),
		h.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "on-it", ParentIndex: p0.Attrs().Index, HardwareAddr: mac}, Mode: netlink.MACVLAN_MODE_BRIDGE}),
		h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "over-it", HardwareAddr: mac}}),
	))
	kinds := kinds.All(s)
	i := plugtest.Further(v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{ParentMAC: mac.String(), Mode: "bridge"}})
	made, err := kinds.Plan(ns.Place(), i)
	nettest.Must(t, err)
	nettest.Must(t, kinds.Make(t.Context(), ns, i))
	if got := nettest.LinkNamed(t, ns, "net1").Attrs().ParentIndex; made.Parent != parent || got != p0.Attrs().Index {
		t.Errorf("recorded on %q, made on %d; want %s, %d", made.Parent, got, parent, p0.Attrs().Index)
	}
	nettest.Must(t, kinds.Remove(t.Context(), made))

	for _, tc := range []struct {
		mac  string
		want error
		text string
	}{
		{"fa:16:3e:09:09:09", link.ErrNoParent, "no link has MAC fa:16:3e:09:09:09"},
		{"FA:16:3E:01:02:03", link.ErrInvalid, `parentMAC "FA:16:3E:01:02:03" of net1 must be a MAC as 02:23:45:67:89:ab`},
	} {
		i.Binding.Macvlan.ParentMAC = tc.mac
		err := kinds.Make(t.Context(), ns, i)
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("parent %s: %v", tc.mac, err)
		}
	}
	nettest.Must(t, h.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "twin", HardwareAddr: mac}}))
	i.Binding.Macvlan.ParentMAC = mac.String()
	if err := kinds.Make(t.Context(), ns, i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "must be that of one link, not of p0, twin") {
		t.Errorf("two links with the MAC: %v", err)
	}
}
