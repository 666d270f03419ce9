package hostdevice

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// driver plays the driver of a physical function with two links: the second has its virtual
// functions.
type driver struct {
	functions [2]netlink.VfInfo
	// refuses has the settings that it refuses, by key.
	refuses map[byte]error
}

func newDriver() *driver {
	d := &driver{refuses: map[byte]error{}}
	for n := range d.functions {
		d.functions[n] = netlink.VfInfo{ID: n, Mac: make(net.HardwareAddr, 6), Vlan: 7, Qos: 2, VlanProto: unix.ETH_P_8021Q, Spoofchk: true, MaxTxRate: 50, LinkState: netlink.VF_LINK_STATE_AUTO}
	}
	return d
}

func (d *driver) Read(physical string) ([]netlink.VfInfo, error) {
	switch physical {
	case "pf0":
		return d.functions[:], nil
	case "pf0rep1":
		return nil, nil
	}
	return nil, fmt.Errorf("no link %s", physical)
}

func (d *driver) Set(physical string, number int, key byte, to [3]uint64) error {
	if physical != "pf0" {
		return unix.EOPNOTSUPP
	}
	if err := d.refuses[key]; err != nil {
		return err
	}
	switch vf := &d.functions[number]; key {
	case vfVLAN:
		vf.Vlan, vf.Qos, vf.VlanProto = int(to[0]), int(to[1]), int(to[2])
	case vfMAC:
		vf.Mac = net.HardwareAddr{byte(to[0] >> 40), byte(to[0] >> 32), byte(to[0] >> 24), byte(to[0] >> 16), byte(to[0] >> 8), byte(to[0])}
	case vfRate:
		vf.MinTxRate, vf.MaxTxRate = uint32(to[0]), uint32(to[1])
	case vfSpoofCheck:
		vf.Spoofchk = to[0] == 1
	case vfTrust:
		vf.Trust = uint32(to[0])
	case vfLinkState:
		vf.LinkState = uint32(to[0])
	}
	return nil
}

// functionLab is a deviceLab whose eth5 is virtual function 1 of pf0 by its sysfs, at the PCI
// address 0000:3b:02.1.
type functionLab struct {
	*deviceLab
	driver *driver
	sys    string
}

func newFunctionLab(t *testing.T) *functionLab {
	t.Helper()
	l := &functionLab{newDeviceLab(t), newDriver(), t.TempDir()}
	devices := filepath.Join(l.sys, "devices/pci0")
	virtual, physical := filepath.Join(devices, "0000:3b:02.1"), filepath.Join(devices, "0000:3b:00.0")
	for _, dir := range []string{virtual + "/net/eth5", physical + "/net/pf0", physical + "/net/pf0rep1", devices + "/0000:3b:02.0", devices + "/0000:04:00.0", l.sys + "/bus/pci/devices"} {
		nettest.Must(t, os.MkdirAll(dir, 0o755))
	}
	for from, to := range map[string]string{
		virtual + "/physfn": physical, physical + "/virtfn0": devices + "/0000:3b:02.0", physical + "/virtfn1": virtual,
		l.sys + "/bus/pci/devices/0000:3b:02.1": virtual, l.sys + "/bus/pci/devices/0000:04:00.0": devices + "/0000:04:00.0",
	} {
		nettest.Must(t, os.Symlink(to, from))
	}
	// The names that the device has on the host.
	for _, name := range []string{"eth5", "net1", returnName(plug.Made{ContainerID: "c1", Name: "net1"}), returnName(plug.Made{ContainerID: "c2", Name: "net1"})} {
		nettest.Must(t, os.MkdirAll(filepath.Join(l.sys, "class/net", name), 0o755))
		nettest.Must(t, os.Symlink(virtual, filepath.Join(l.sys, "class/net", name, "device")))
	}
	l.setUp(l.device)
	return l
}

func (l *functionLab) setUp(d *hostDevice) { d.sys, d.functions = l.sys, l.driver }

// ofFunction is net1 of a container, on virtual function 1 with all settings.
func ofFunction(containerID string) plug.Interface {
	return interfaceOf(containerID, v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &v1alpha1.VFSettings{
		VLAN: &v1alpha1.VFVLAN{ID: 100, QoS: 3, Protocol: "802.1ad"}, SpoofCheck: new(false), Trust: new(true), LinkState: v1alpha1.VFLinkEnable, Rate: &v1alpha1.VFRate{Min: 10, Max: 20},
	}})
}

// resolved returns the plug.Made that the record has.
func (l *functionLab) resolved(i plug.Interface) plug.Made {
	l.t.Helper()
	m := l.device.Plan(l.pod.Place(), i)
	nettest.Must(l.t, l.device.Resolve(i, &m))
	return m
}

// wantDefaults fails unless the virtual functions are as the host had set them up.
func (l *functionLab) wantDefaults(when string) {
	l.t.Helper()
	if diff := cmp.Diff(newDriver().functions, l.driver.functions); diff != "" {
		l.t.Errorf("%s: virtual functions (-before +after):\n%s", when, diff)
	}
}

// A virtual function has the settings of its interface while it is one, and its former
// settings afterwards. The record names them before they change.
func TestVirtualFunction(t *testing.T) {
	l := newFunctionLab(t)
	i := ofFunction("c1")
	m := l.resolved(i)
	const former = "v7.2.8100/m0/r0.32/s1/t0/l0"
	if m.Device == nil || m.Device.VF != former {
		t.Fatalf("recorded %+v, want the former settings %s", m.Device, former)
	}
	l.wantDefaults("Resolve")
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	want := newDriver().functions
	want[1] = netlink.VfInfo{
		ID: 1, Mac: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Vlan: 100, Qos: 3, VlanProto: unix.ETH_P_8021AD, MinTxRate: 10, MaxTxRate: 20, Trust: 1, LinkState: netlink.VF_LINK_STATE_ENABLE,
	}
	if diff := cmp.Diff(want, l.driver.functions); diff != "" {
		t.Errorf("virtual functions (-want +got):\n%s", diff)
	}
	if a := nettest.LinkNamed(t, l.pod, "net1").Attrs(); a.HardwareAddr.String() != "02:00:00:00:00:09" {
		t.Errorf("interface %+v", a)
	}
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("Remove")
	l.wantDefaults("Remove")
}

// The settings that an interface does not have stay as they are, and a driver is not asked
// for them.
func TestVirtualFunctionWithoutSettings(t *testing.T) {
	l := newFunctionLab(t)
	for _, key := range vfKeys {
		l.driver.refuses[key.key] = unix.EOPNOTSUPP
	}
	i := interfaceOf("c1", v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &v1alpha1.VFSettings{}})
	i.MAC = nil
	m := l.resolved(i)
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	l.wantDefaults("Make")
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("Remove")
}

// A daemon is killed after each change: the next one gives the virtual function back with
// its former settings, by the record or by the mark alone.
func TestVirtualFunctionSurvivesCrash(t *testing.T) {
	for _, after := range []string{deviceMarked, deviceSetUp, deviceMoved, deviceReturned, deviceReset, deviceNamed, deviceUnmarked} {
		for _, then := range []string{"DEL", "ADD", "without a record"} {
			t.Run(after+", "+then, func(t *testing.T) {
				l := newFunctionLab(t)
				i := ofFunction("c1")
				m := l.resolved(i)
				if !l.kill(after, func(d *hostDevice) {
					l.setUp(d)
					if d.Make(t.Context(), l.pod, i) == nil {
						_ = d.Remove(t.Context(), m)
					}
				}) {
					t.Fatal("the change was not reached")
				}
				switch then {
				case "ADD":
					nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
					if vlan := l.driver.functions[1].Vlan; vlan != 100 {
						t.Errorf("VLAN %d", vlan)
					}
				case "without a record":
					m.Device = nil
					for _, f := range l.found() {
						nettest.Must(t, l.device.Remove(t.Context(), f.Made))
					}
				}
				nettest.Must(t, l.device.Remove(t.Context(), m))
				l.wantBefore(then)
				l.wantDefaults(then)
			})
		}
	}
}

// Remove is killed between two settings, or the driver refuses one: the next Remove makes
// the others.
func TestVirtualFunctionIsResetInPart(t *testing.T) {
	l := newFunctionLab(t)
	i := ofFunction("c1")
	m := l.resolved(i)
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	l.driver.refuses[vfTrust] = unix.EBUSY
	if err := l.device.Remove(t.Context(), m); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "trust of virtual function 1 of pf0") {
		t.Errorf("Remove: %v", err)
	}
	delete(l.driver.refuses, vfTrust)
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("the second Remove")
	l.wantDefaults("the second Remove")
}

// The driver refuses a setting: the error names it, and the others are taken back.
func TestVirtualFunctionThatTheDriverRefuses(t *testing.T) {
	for key, says := range map[byte]string{
		vfVLAN: "vlan of virtual function 1 of pf0: the driver refuses v64.3.88a8", vfMAC: "mac of virtual", vfRate: "rate of virtual",
		vfSpoofCheck: "spoofCheck of virtual", vfTrust: "trust of virtual", vfLinkState: "linkState of virtual",
	} {
		l := newFunctionLab(t)
		l.driver.refuses[key] = unix.EOPNOTSUPP
		l.wantRefused(ofFunction("c1"), says)
		l.wantBefore(says)
		l.wantDefaults(says)
	}
}

// A pod that may change its links marks its virtual function as one of another VLAN, with
// trust, and its namespace ends without a DEL. The record decides, and until then no other
// sandbox gets the function.
func TestVirtualFunctionWithAForgedMark(t *testing.T) {
	l := newFunctionLab(t)
	i := ofFunction("c1")
	m := l.resolved(i)
	nettest.Must(t, l.device.Make(t.Context(), l.pod, i))
	h := nettest.OpenHandle(t, l.pod)
	dev := nettest.LinkNamed(t, l.pod, "net1")
	nettest.Must(t, errors.Join(
		h.LinkSetAlias(dev, "fairlead c1 net1 - eth5 1450 - up/v29a.0.8100/t1"), h.LinkSetDown(dev), h.LinkSetName(dev, "net1"), h.LinkSetNsFd(dev, l.host.Namespace().FD()),
	))
	l.endPod()
	other := nettest.NewNamespace(t)
	if err := l.device.Make(t.Context(), other, ofFunction("c2")); !errors.Is(err, link.ErrExists) && !errors.Is(err, link.ErrNoParent) {
		t.Errorf("Make of another: %v", err)
	}
	nettest.Must(t, l.device.Remove(t.Context(), m))
	l.wantBefore("Remove")
	l.wantDefaults("Remove")
}

// A virtual function is known by its place on the bus: its physical function may change the
// MAC that its link has as the hardware's.
func TestVirtualFunctionWithoutItsMark(t *testing.T) {
	m := plug.Made{ContainerID: "c1", Name: "net1", Device: &plug.Device{Name: "eth5", PermanentMAC: "02:00:00:00:00:01", PCIAddress: "0000:3b:02.1", VF: "v7.0.8100"}}
	given := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, tt := range []struct {
		name       string
		a          netlink.LinkAttrs
		is, itself bool
	}{
		{"no mark, another MAC", netlink.LinkAttrs{Name: "net1", PermHWAddr: given, ParentDev: "0000:3b:02.1"}, true, true},
		{"its former name", netlink.LinkAttrs{Name: "eth5", ParentDev: "0000:3b:02.1"}, true, true},
		{"the mark of another", netlink.LinkAttrs{Name: "eth5", ParentDev: "0000:3b:02.1", Alias: "fairlead c9 net1 - eth5 1500 - up"}, true, false},
		{"its mark on another link", netlink.LinkAttrs{Name: "net1", Alias: "fairlead c1 net1 - eth5 1500 - up", ParentDev: "0000:3b:02.2"}, false, false},
	} {
		if got := isDevice(&m, &tt.a); got != tt.is {
			t.Errorf("%s: is the device in the sandbox: %t, want %t", tt.name, got, tt.is)
		}
		if got := cameBack(&m, &tt.a); got != tt.itself {
			t.Errorf("%s: came back: %t, want %t", tt.name, got, tt.itself)
		}
	}
}

// A device that is no virtual function, or one without a physical function on the host, is
// left alone.
func TestNoVirtualFunction(t *testing.T) {
	l := newFunctionLab(t)
	at := func(address string) plug.Interface {
		i := ofFunction("c1")
		i.Binding.HostDevice.PCIAddress = address
		return i
	}
	nettest.Must(t, os.MkdirAll(filepath.Join(l.sys, "devices/pci0/0000:04:00.0/net/eth5"), 0o755))
	l.wantRefused(at("0000:04:00.0"), "must be a virtual function of SR-IOV")
	l.wantRefused(at(""), "must have one of name")
	// A program in user space has it (DPDK).
	nettest.Must(t, os.RemoveAll(filepath.Join(l.sys, "devices/pci0/0000:3b:02.1/net/eth5")))
	nettest.Must(t, os.Symlink("../../../drivers/vfio-pci", filepath.Join(l.sys, "devices/pci0/0000:3b:02.1/driver")))
	l.wantRefused(at("0000:3b:02.1"), "its driver is vfio-pci, which gives it to a program in user space: do not select the network")
	nettest.Must(t, os.MkdirAll(filepath.Join(l.sys, "devices/pci0/0000:3b:02.1/net/eth5"), 0o755))
	named := at("")
	named.Binding.HostDevice.Name = "eth5"
	l.wantRefused(named, "must be named by its PCI address")
	nettest.Must(t, os.Remove(filepath.Join(l.sys, "devices/pci0/0000:3b:00.0/net/pf0")))
	l.wantRefused(at("0000:3b:02.1"), "virtual function 1 of pf0rep1 must be one")
	nettest.Must(t, os.Remove(filepath.Join(l.sys, "devices/pci0/0000:3b:00.0/net/pf0rep1")))
	l.wantRefused(at("0000:3b:02.1"), "must have a physical function with a link")
	l.wantBefore("all")
	l.wantDefaults("all")
}

func TestParseSettings(t *testing.T) {
	for _, text := range []string{"", "v64.3.88a8", "v7.2.8100/m20000000009/r0.32/s1/t0/l2"} {
		if s, ok := parseSettings(text); !ok || s.String() != text {
			t.Errorf("%q is read as %q, %t", text, s, ok)
		}
	}
	for _, text := range []string{"v", "v1", "v1.2.8100.4", "v1000.0.8100", "v1.8.8100", "m1000000000000", "s2", "l3", "x1", "t1/v1.0.8100", "t1/t1", "t1/", "/", "t01", "t+1", "r1.80000000", "tg"} {
		if s, ok := parseSettings(text); ok {
			t.Errorf("%q is read as %v", text, s)
		}
	}
}

// The kernel's virtual functions are those of netdevsim, which keeps all settings. Its
// functions have no links.
func TestVirtualFunctionsOfTheKernel(t *testing.T) {
	nettest.NeedRoot(t)
	if _, err := os.Stat("/sys/bus/netdevsim/new_device"); err != nil {
		t.Skip("needs a kernel with netdevsim, the simulator of network devices, which Debian's lacks: modprobe netdevsim")
	}
	node := nettest.NewNode(t)
	const id = "4711"
	nettest.In(t, node.Namespace(), func() error { return os.WriteFile("/sys/bus/netdevsim/new_device", []byte(id+" 1"), 0o200) })
	t.Cleanup(func() { nettest.Must(t, os.WriteFile("/sys/bus/netdevsim/del_device", []byte(id), 0o200)) })
	nettest.Must(t, os.WriteFile("/sys/bus/netdevsim/devices/netdevsim"+id+"/sriov_numvfs", []byte("2"), 0o200))
	physical := ""
	for _, name := range nettest.LinkNames(t, node.Namespace()) {
		if name != "lo" {
			physical = name
		}
	}
	k := kernelFunctions{node}
	before, _, err := stateOf(k, function{1, []string{physical}})
	nettest.Must(t, err)
	wanted := settingsOf(ofFunction("c1"))
	nettest.Must(t, setUp(k, physical, 1, wanted))
	for n, want := range []settings{before, wanted} {
		got, _, err := stateOf(k, function{n, []string{physical}})
		nettest.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("virtual function %d (-want +got):\n%s", n, diff)
		}
	}
	nettest.Must(t, setUp(k, physical, 1, before))
	if got, _, err := stateOf(k, function{1, []string{physical}}); err != nil || !cmp.Equal(got, before) {
		t.Errorf("%v after the reset: %v, want %v", err, got, before)
	}
	if _, _, err := stateOf(k, function{2, []string{physical}}); !errors.Is(err, link.ErrInvalid) {
		t.Errorf("a function that is not there: %v", err)
	}
}
