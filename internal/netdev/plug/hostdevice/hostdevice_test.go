package hostdevice

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/test/nettest"
)

// deviceLab is a host with a device eth5, which has an alias and another name, and a pod.
type deviceLab struct {
	t      *testing.T
	host   *link.Sockets
	pod    *link.Namespace
	device *hostDevice
	before netlink.LinkAttrs
}

func newDeviceLab(t *testing.T) *deviceLab {
	t.Helper()
	l := &deviceLab{t: t, host: nettest.NewNode(t), pod: nettest.NewNamespace(t)}
	nettest.AddDevice(t, l.host, "eth5")
	h := nettest.OpenHandle(t, l.host.Namespace())
	dev := nettest.LinkNamed(t, l.host.Namespace(), "eth5")
	nettest.Must(t, errors.Join(h.LinkSetAlias(dev, "rack 7, port 2"), h.LinkSetMTU(dev, 1450), h.LinkAddAltName(dev, "enp3s0f1")))
	l.device = newHostDevice(l.host)
	l.before = l.onHost("eth5")
	return l
}

// onHost returns the state of a link of the host that a device has to have again.
func (l *deviceLab) onHost(name string) netlink.LinkAttrs {
	l.t.Helper()
	a := nettest.LinkNamed(l.t, l.host.Namespace(), name).Attrs()
	return netlink.LinkAttrs{Name: a.Name, MTU: a.MTU, HardwareAddr: a.HardwareAddr, Flags: a.Flags & net.FlagUp, Alias: a.Alias, AltNames: a.AltNames}
}

func (l *deviceLab) wantBefore(when string) {
	l.t.Helper()
	if names := nettest.LinkNames(l.t, l.host.Namespace()); !cmp.Equal(names, []string{"eth5", "lo", "xeth5"}) {
		l.t.Fatalf("%s: links of the host %v", when, names)
	}
	if diff := cmp.Diff(l.before, l.onHost("eth5")); diff != "" {
		l.t.Errorf("%s: device (-before +after):\n%s", when, diff)
	}
}

// interfaceOf is net1 of a container, by a binding.
func interfaceOf(containerID string, b v1alpha1.HostDeviceBinding) plug.Interface {
	return plug.Interface{
		ContainerID: containerID, Name: "net1", Binding: v1alpha1.Binding{HostDevice: &b},
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, MTU: 1400, Addresses: nil,
	}
}

func byName(containerID string) plug.Interface {
	return interfaceOf(containerID, v1alpha1.HostDeviceBinding{Name: "eth5"})
}

// A device has its former state again after it was an interface.
func TestDeviceComesBackAsItWas(t *testing.T) {
	l := newDeviceLab(t)
	i := byName("c1")
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	if names := nettest.LinkNames(t, l.host.Namespace()); !cmp.Equal(names, []string{"lo", "xeth5"}) {
		t.Errorf("links of the host %v", names)
	}
	a := nettest.LinkNamed(t, l.pod, "net1").Attrs()
	if a.MTU != 1400 || a.HardwareAddr.String() != "02:00:00:00:00:09" || a.Flags&net.FlagUp == 0 {
		t.Errorf("interface %+v", a)
	}
	nettest.Must(t, l.device.Remove(t.Context(), l.device.Plan(l.pod.Place(), i)))
	l.wantBefore("Remove")
}

// kill runs do, which ends after a change like a daemon that is killed. It reports
// whether the change was reached.
func (l *deviceLab) kill(after string, do func(d *hostDevice)) (reached bool) {
	d := newHostDevice(l.host)
	d.after = func(change string) {
		if change == after {
			reached = true
			runtime.Goexit()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(d)
	}()
	<-done
	return reached
}

// A daemon is killed after each change: the next one gives the device back, or plugs it
// again (multus#1342).
func TestDeviceSurvivesCrash(t *testing.T) {
	for _, after := range []string{deviceMarked, deviceMoved, deviceReturned, deviceNamed, deviceUnmarked} {
		for _, then := range []string{"DEL", "ADD", "ADD of another", "without a record"} {
			t.Run(after+", "+then, func(t *testing.T) {
				l := newDeviceLab(t)
				i := byName("c1")
				m := l.device.Plan(l.pod.Place(), i)
				reached := l.kill(after, func(d *hostDevice) {
					if d.Make(t.Context(), l.pod, i) == nil {
						_ = d.Remove(t.Context(), m)
					}
				})
				if !reached {
					t.Fatal("the change was not reached")
				}
				switch then {
				case "ADD":
					nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
				case "ADD of another":
					other, next := nettest.NewNamespace(t), byName("c2")
					err := l.device.Make(t.Context(), other, next)
					if after == deviceMoved {
						if !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "interface net1 of container c1") && !strings.Contains(err.Error(), "interface eth5 of container c1") {
							t.Errorf("a device in another sandbox: %v", err)
						}
					} else {
						nettest.Must(t, err)
					}
					// The removal of the killed one takes nothing from the other.
					nettest.Must(t, l.device.Remove(t.Context(), m))
					if names := nettest.LinkNames(t, other); after != deviceMoved && !cmp.Equal(names, []string{"lo", "net1"}) {
						t.Errorf("links of the other sandbox %v", names)
					}
					nettest.Must(t, l.device.Remove(t.Context(), l.device.Plan(other.Place(), next)))
				case "without a record":
					for _, f := range l.found() {
						nettest.Must(t, l.device.Remove(t.Context(), f.Made))
					}
				}
				nettest.Must(t, l.device.Remove(t.Context(), m))
				l.wantBefore(then)
				if found := l.found(); len(found) > 0 {
					t.Errorf("found after all: %+v", found)
				}
			})
		}
	}
}

func (l *deviceLab) found() []plug.Found {
	l.t.Helper()
	all, err := nettest.OpenHandle(l.t, l.host.Namespace()).LinkList()
	nettest.Must(l.t, err)
	return l.device.Find(l.t.Context(), all)
}

// The kernel returns a device with hardware when its namespace ends: under the name that
// it had there, or dev and a number. Stand-ins end with their namespace, so the test moves
// the device as the kernel does.
func TestDeviceOfANamespaceThatEnded(t *testing.T) {
	for _, name := range []string{"net1", "dev42"} {
		for _, then := range []string{"Remove", "Find", "the next Make"} {
			t.Run(name+", "+then, func(t *testing.T) {
				l := newDeviceLab(t)
				i := byName("c1")
				nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
				m := l.device.Plan(l.pod.Place(), i)
				h := nettest.OpenHandle(t, l.pod)
				dev := nettest.LinkNamed(t, l.pod, "net1")
				nettest.Must(t, errors.Join(h.LinkSetDown(dev), h.LinkSetName(dev, name), h.LinkSetNsFd(dev, l.host.Namespace().FD())))
				l.endPod()
				switch then {
				case "Remove":
					nettest.Must(t, l.device.Remove(t.Context(), m))
				case "Find":
					found := l.found()
					if len(found) != 1 || found[0].HostLink != name || found[0].ContainerID != "c1" {
						t.Fatalf("found %+v", found)
					}
					if gone, err := l.device.Gone(t.Context(), found[0].Made); !gone || err != nil {
						t.Errorf("gone is %t, %v", gone, err)
					}
					nettest.Must(t, l.device.Remove(t.Context(), found[0].Made))
				default:
					next, other := byName("c2"), nettest.NewNamespace(t)
					nettest.Must(t, l.device.Make(t.Context(), other, next))
					nettest.Must(t, l.device.Remove(t.Context(), l.device.Plan(other.Place(), next)))
				}
				l.wantBefore(then)
			})
		}
	}
}

func (l *deviceLab) endPod() {
	l.t.Helper()
	nettest.DropPath(l.t, l.pod.Path())
	nettest.Must(l.t, os.Remove(l.pod.Path()))
}

// A device comes back from a namespace that a process holds after its path is gone
// (multus#1134).
func TestDeviceInAHeldNamespace(t *testing.T) {
	l := newDeviceLab(t)
	i := byName("c1")
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	m := l.device.Plan(l.pod.Place(), i)
	process := exec.Command("sleep", "600")
	nettest.Must(t, l.pod.Do(process.Start))
	defer func() { _, _ = process.Process.Kill(), process.Wait() }()
	l.endPod()
	hidden := m
	hidden.Namespace.ID.Inode++ // as if the process were hidden
	if err := l.device.Remove(t.Context(), hidden); err == nil || !strings.Contains(err.Error(), "end that process") {
		t.Errorf("a namespace that cannot be entered: %v", err)
	}
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("Remove")
}

// A pod that may change its links cannot keep a device by changing its mark: the record
// has the MAC of the hardware.
func TestDeviceWhoseMarkIsChanged(t *testing.T) {
	hardware, other := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	recorded := plug.Made{ContainerID: "c1", Name: "net1", Device: &plug.Device{Name: "eth5", PermanentMAC: hardware.String(), PCIAddress: "0000:3b:00.1"}}
	unknown := plug.Made{ContainerID: "c1", Name: "net1"}
	const own, foreign = "fairlead c1 net1 - eth5 1500 - up", "fairlead c9 net1 - eth7 1500 - up"
	for _, tt := range []struct {
		name       string
		m          plug.Made
		a          netlink.LinkAttrs
		is, itself bool
	}{
		{"marked", recorded, netlink.LinkAttrs{Name: "net1", Alias: own, PermHWAddr: hardware}, true, false},
		{"no mark", recorded, netlink.LinkAttrs{Name: "net1", PermHWAddr: hardware}, true, false},
		{"another mark", recorded, netlink.LinkAttrs{Name: "net1", Alias: foreign, PermHWAddr: hardware}, true, false},
		{"the mark on another link", recorded, netlink.LinkAttrs{Name: "net1", Alias: own, PermHWAddr: other}, false, false},
		{"returned by the kernel", recorded, netlink.LinkAttrs{Name: "net1", PermHWAddr: hardware, ParentDev: "0000:3b:00.1"}, true, true},
		{"with its name", recorded, netlink.LinkAttrs{Name: "eth5", PermHWAddr: hardware, ParentDev: "0000:3b:00.1"}, true, false},
		{"another device with its MAC", recorded, netlink.LinkAttrs{Name: "eth0", PermHWAddr: hardware, ParentDev: "vmbus-1"}, true, false},
		{"not recorded, marked", unknown, netlink.LinkAttrs{Name: "net1", Alias: own}, true, false},
		{"not recorded, no mark", unknown, netlink.LinkAttrs{Name: "net1", PermHWAddr: hardware}, false, false},
	} {
		if got := isDevice(&tt.m, &tt.a); got != tt.is {
			t.Errorf("%s: is the device in the sandbox: %t, want %t", tt.name, got, tt.is)
		}
		if got := cameBack(&tt.m, &tt.a); got != tt.itself {
			t.Errorf("%s: came back: %t, want %t", tt.name, got, tt.itself)
		}
	}
}

// A device is named by its name, another name, its MAC, or its place on a bus.
func TestDeviceByItsBinding(t *testing.T) {
	l := newDeviceLab(t)
	sys := t.TempDir()
	for _, dir := range []string{"bus/pci/devices/0000:3b:00.1/net/eth5", "devices/pci0000:3a/0000:3b:00.2/virtio7/net/eth5", "bus/pci/devices/0000:3b:00.3", "bus/pci/devices/0000:3b:00.4"} {
		nettest.Must(t, os.MkdirAll(filepath.Join(sys, dir), 0o755))
	}
	nettest.Must(t, os.Symlink("../../../drivers/vfio-pci", filepath.Join(sys, "bus/pci/devices/0000:3b:00.3/driver")))
	nettest.Must(t, os.Symlink("../../../drivers/mlx5_core", filepath.Join(sys, "bus/pci/devices/0000:3b:00.4/driver")))
	l.device.sys = sys
	for name, b := range map[string]v1alpha1.HostDeviceBinding{
		"name": {Name: "eth5"}, "another name": {Name: "enp3s0f1"}, "MAC": {MAC: l.before.HardwareAddr.String()},
		"PCI address": {PCIAddress: "0000:3b:00.1"}, "path": {KernelPath: "/sys/devices/pci0000:3a/0000:3b:00.2"},
	} {
		i := interfaceOf("c1", b)
		m := l.device.Plan(l.pod.Place(), i)
		nettest.Must(t, l.device.Resolve(i, &m))
		if m.Device == nil || m.Device.Name != "eth5" || m.Device.MTU != 1450 || !m.Device.Up {
			t.Errorf("%s: resolved as %+v", name, m.Device)
		}
		nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
		nettest.Must(t, l.device.Remove(t.Context(), m))
		l.wantBefore(name)
	}
	for says, b := range map[string]v1alpha1.HostDeviceBinding{
		"its driver is vfio-pci":                               {PCIAddress: "0000:3b:00.3"},
		"must have one of name":                                {},
		`hostDevice.kernelPath "/sys/devices/../bus": must be`: {KernelPath: "/sys/devices/../bus"},
		"must be like 0000:3b:00.1":                            {PCIAddress: "../../x"},
	} {
		says = strings.Replace(says, `": must`, `" must`, 1)
		if err := l.device.Make(t.Context(), l.pod, interfaceOf("c1", b)); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want ErrInvalid with %q", err, says)
		}
	}
	for _, b := range []v1alpha1.HostDeviceBinding{{Name: "eth9"}, {MAC: "02:00:00:00:00:99"}, {PCIAddress: "0000:3b:00.4"}, {KernelPath: "/sys/devices/none"}} {
		if err := l.device.Make(t.Context(), l.pod, interfaceOf("c1", b)); !errors.Is(err, link.ErrNoParent) || !strings.Contains(err.Error(), deviceText(&b)) {
			t.Errorf("a missing device: %v", err)
		}
	}
	l.wantBefore("all")
}

// The error about a device in another namespace names the container that has it.
func TestDeviceIsHeld(t *testing.T) {
	d := newHostDevice(nil)
	d.sys = t.TempDir()
	nettest.Must(t, os.MkdirAll(filepath.Join(d.sys, "bus/pci/devices/0000:3b:00.2/virtio7"), 0o755))
	of := func(a netlink.LinkAttrs) link.OutsideLink {
		return link.OutsideLink{Link: &netlink.Device{LinkAttrs: a}}
	}
	outside := []link.OutsideLink{
		of(netlink.LinkAttrs{Name: "lo"}),
		of(netlink.LinkAttrs{Name: "net1", Alias: "fairlead c1 net1 - eth5 1500 02:00:00:00:00:05 up", ParentDev: "0000:3b:00.1"}),
		of(netlink.LinkAttrs{Name: "net2", Alias: "fairlead c2 net2 - eth6 1500 - up", ParentDev: "virtio7"}),
		of(netlink.LinkAttrs{Name: "wan", PermHWAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7}}),
	}
	for says, b := range map[string]v1alpha1.HostDeviceBinding{
		"device eth5 is interface net1 of container c1":                              {Name: "eth5"},
		"device with MAC 02:00:00:00:00:05 is interface net1 of container c1":        {MAC: "02:00:00:00:00:05"},
		"device at PCI address 0000:3b:00.1 is interface net1 of container c1":       {PCIAddress: "0000:3b:00.1"},
		"device at PCI address 0000:3b:00.2 is interface net2 of container c2":       {PCIAddress: "0000:3b:00.2"},
		"device at /sys/devices/pci0/0000:3b:00.1 is interface net1 of container c1": {KernelPath: "/sys/devices/pci0/0000:3b:00.1"},
		"device with MAC 02:00:00:00:00:07 is in another namespace, as wan":          {MAC: "02:00:00:00:00:07"},
	} {
		if err := d.held(&b, outside); !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want ErrExists with %q", err, says)
		}
	}
	if err := d.held(&v1alpha1.HostDeviceBinding{Name: "eth9"}, outside); !errors.Is(err, link.ErrNoParent) {
		t.Errorf("a device that is nowhere: %v", err)
	}
}

// The host keeps the devices that it needs itself.
func TestDeviceThatTheHostNeeds(t *testing.T) {
	address := func(h *netlink.Handle, dev netlink.Link) error {
		return h.AddrAdd(dev, &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("192.0.2.2/24"))})
	}
	for says, need := range map[string]func(h *netlink.Handle, dev netlink.Link) error{
		"it carries the default route of the node": func(h *netlink.Handle, dev netlink.Link) error {
			return errors.Join(address(h, dev), h.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: nettest.Addr("192.0.2.1").AsSlice()}))
		},
		"it is a port of br0": func(h *netlink.Handle, dev netlink.Link) error {
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
			return errors.Join(h.LinkAdd(br), h.LinkSetMaster(dev, br))
		},
		"it is the parent of mv0": func(h *netlink.Handle, dev netlink.Link) error {
			return h.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: dev.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
		},
		"it is a link of Fairlead": func(h *netlink.Handle, dev netlink.Link) error { return h.LinkSetAlias(dev, "fairlead bridge") },
	} {
		t.Run(says, func(t *testing.T) {
			l := newDeviceLab(t)
			nettest.Must(t, need(nettest.OpenHandle(t, l.host.Namespace()), nettest.LinkNamed(t, l.host.Namespace(), "eth5")))
			l.wantRefused(byName("c1"), says)
		})
	}
	t.Run("the parent of a pod", func(t *testing.T) {
		l := newDeviceLab(t)
		other := nettest.NewNamespace(t)
		nettest.Must(t, child.Macvlan(l.host).Make(t.Context(), other, plug.Interface{
			ContainerID: "c2", Name: "net1", Binding: v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "eth5", Mode: "bridge"}},
		}))
		l.wantRefused(byName("c1"), "it is the parent of interface net1 of container c2")
	})
	t.Run("lo", func(t *testing.T) {
		l := newDeviceLab(t)
		l.wantRefused(interfaceOf("c1", v1alpha1.HostDeviceBinding{Name: "lo"}), "it is the loopback interface")
	})
	t.Run("a long alias", func(t *testing.T) {
		l := newDeviceLab(t)
		nettest.Must(t, nettest.OpenHandle(t, l.host.Namespace()).LinkSetAlias(nettest.LinkNamed(t, l.host.Namespace(), "eth5"), strings.Repeat("a", 250)))
		l.wantRefused(byName("c1"), "bytes shorter")
	})
}

func (l *deviceLab) wantRefused(i plug.Interface, says string) {
	l.t.Helper()
	before := nettest.LinkNames(l.t, l.host.Namespace())
	if err := l.device.Make(l.t.Context(), l.pod, i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), says) {
		l.t.Errorf("%v, want ErrInvalid with %q", err, says)
	}
	if diff := cmp.Diff(before, nettest.LinkNames(l.t, l.host.Namespace())); diff != "" {
		l.t.Errorf("links of the host (-before +after):\n%s", diff)
	}
}

// A link that has the former name of a device keeps it. The device gets the name when the
// link is gone.
func TestDeviceWhoseNameIsTaken(t *testing.T) {
	l := newDeviceLab(t)
	i := byName("c1")
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	nettest.AddDevice(t, l.host, "net1") // the name in the pod is taken too
	h := nettest.OpenHandle(t, l.host.Namespace())
	taker := nettest.LinkNamed(t, l.host.Namespace(), "net1")
	nettest.Must(t, errors.Join(h.LinkSetDown(taker), h.LinkSetName(taker, "eth5")))
	m := l.device.Plan(l.pod.Place(), i)
	if err := l.device.Remove(t.Context(), m); !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "former name eth5") {
		t.Errorf("Remove: %v", err)
	}
	if names := nettest.LinkNames(t, l.pod); !cmp.Equal(names, []string{"lo"}) {
		t.Errorf("links of the pod %v", names)
	}
	nettest.Must(t, h.LinkDel(taker))
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("the second Remove")
}

func TestParseMark(t *testing.T) {
	for _, m := range []mark{
		{containerID: "c1", name: "net1", path: "/run/netns/cni-1", former: plug.Device{Name: "eth5", MTU: 1500, MAC: "02:00:00:00:00:01", Up: true, Alias: "rack 7"}},
		{containerID: "c1", name: "net1", former: plug.Device{Name: "eth5", MTU: 1500, Up: true, VF: "v64.3.88a8/t1", Alias: "rack 7"}},
		{containerID: "c1", name: "net1", former: plug.Device{Name: "eth5", MTU: 68}},
		{containerID: "c1", name: "net1", path: "/with a space/ns", former: plug.Device{Name: "eth5"}},
		{containerID: "c1", name: "net1", path: "-relative", former: plug.Device{Name: "eth5"}},
	} {
		alias, err := m.words()
		nettest.Must(t, err)
		if got, ok := parseMark(alias); !ok || got != m {
			t.Errorf("%q is read as %+v, %t; want %+v", alias, got, ok, m)
		}
		if id, name, _, ok := link.ParseAlias(alias); !ok || id != m.containerID || name != m.name {
			t.Errorf("%q does not begin with its owner", alias)
		}
	}
	for _, alias := range []string{
		"", "fairlead ", "fairlead c1 net1", "other c1 net1 - eth5 1500 - up", "fairlead c1 net1 - a/b 1500 - up", "fairlead c1 net1 - eth5 -1 - up",
		"fairlead c1 net1 - eth5 65536 - up", "fairlead c1 net1 - eth5 1500 02:00 up", "fairlead c1 net1 - eth5 1500 - maybe", "fairlead c1 net1 - eth5 1500 - up/", "fairlead c1 net1 - eth5 1500 - up/t2", "fairlead c1 net1 - eth5 1500 - maybe/t1", "fairlead  net1 - eth5 1500 - up", "fairlead c1 net1 %zz eth5 1500 - up",
		"fairlead c1 net1 %2D eth5 1500 - up", "fairlead ../../etc/c1 net1 - eth5 1500 - up",
	} {
		if m, ok := parseMark(alias); ok {
			t.Errorf("%q is read as %+v", alias, m)
		}
	}
}

// Any alias is parsed without a panic, and a mark that was parsed is written the same.
func FuzzParseMark(f *testing.F) {
	f.Add("fairlead c1 net1 %2Frun%2Fnetns%2Fx eth5 1500 02:00:00:00:00:01 up rack 7")
	f.Add("fairlead c1 net1 - eth5 1500 - down")
	f.Add("fairlead c1 net1 - eth5 1500 - down/v64.3.88a8/m20000000009/r0.32/s1/t0/l2 rack 7")
	f.Fuzz(func(t *testing.T, alias string) {
		m, ok := parseMark(alias)
		if !ok {
			return
		}
		again, err := m.words()
		if err != nil {
			return // longer than the kernel allows
		}
		if got, ok := parseMark(again); !ok || got != m {
			t.Errorf("%q is written as %q and read as %+v, %t; want %+v", alias, again, got, ok, m)
		}
	})
}
