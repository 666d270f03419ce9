package plug

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/ovslab"
)

const (
	portA = "3f1c2d4e-0000-4000-8000-00000000000a"
	portB = "3f1c2d4e-0000-4000-8000-00000000000b"
)

// ovsLab is a host with Open vSwitch.
type ovsLab struct {
	t      *testing.T
	host   *link.Sockets
	sw     *ovslab.OVS
	kind   *ovs
	before []string // the links of the host
}

func newOVSLab(t *testing.T) *ovsLab {
	t.Helper()
	l := &ovsLab{t: t, host: nettest.NewNode(t)}
	l.sw = ovslab.New(t, l.host)
	l.before = nettest.LinkNames(t, l.host.Namespace())
	l.restart()
	return l
}

// restart replaces the kind, as another daemon does.
func (l *ovsLab) restart() {
	l.kind = newOVS(l.host, l.sw.Socket(), ovslab.NewShutter(l.host))
}

// onPort returns an interface that is a port of Neutron. The last byte of the address is
// that of the MAC.
func onPort(containerID, port, address string) Interface {
	p := nettest.Prefix(address)
	return Interface{
		ContainerID: containerID, Name: "eth0", MTU: 1400, MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, p.Addr().As4()[3]},
		Addresses: []netip.Prefix{p}, Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: port}},
	}
}

// plug makes an interface in a new namespace.
func (l *ovsLab) plug(i Interface) (*link.Namespace, Made) {
	l.t.Helper()
	pod := nettest.NewNamespace(l.t)
	if err := l.kind.Make(l.t.Context(), pod, i); err != nil {
		l.t.Fatalf("Make: %v", err)
	}
	return pod, l.kind.Plan(pod.Place(), i)
}

func (l *ovsLab) remove(m Made) {
	l.t.Helper()
	if err := l.kind.Remove(l.t.Context(), m); err != nil {
		l.t.Errorf("Remove: %v", err)
	}
}

func (l *ovsLab) found() []Found {
	l.t.Helper()
	h := nettest.OpenHandle(l.t, l.host.Namespace())
	all, err := h.LinkList()
	if err != nil {
		l.t.Fatal(err)
	}
	return l.kind.Find(l.t.Context(), all)
}

func (l *ovsLab) differences(pod *link.Namespace, m Made) []string {
	l.t.Helper()
	all, err := (Namespaces{}).Inspect(l.t.Context(), pod)
	if err != nil {
		l.t.Fatal(err)
	}
	diffs, err := l.kind.Differences(l.t.Context(), m, all[m.Name])
	if err != nil {
		l.t.Fatal(err)
	}
	return diffs
}

// nothingLeft asserts that host and Open vSwitch are as before.
func (l *ovsLab) nothingLeft(when string) {
	l.t.Helper()
	if diff := cmp.Diff(l.before, nettest.LinkNames(l.t, l.host.Namespace())); diff != "" {
		l.t.Errorf("%s: links of the host (-before +after):\n%s", when, diff)
	}
	if ports := l.sw.Ports(); len(ports) > 0 {
		l.t.Errorf("%s: br-int has the ports %q", when, ports)
	}
	if rows := strings.Fields(l.sw.Ctl("--columns=name", "--bare", "list", "Interface")); !slices.Equal(rows, []string{"br-int"}) {
		l.t.Errorf("%s: interfaces %q in Open vSwitch, want that of br-int", when, rows)
	}
	if links := l.sw.Shut(); len(links) > 0 {
		l.t.Errorf("%s: links %q are shut", when, links)
	}
	if found := l.found(); len(found) > 0 {
		l.t.Errorf("%s: found %+v", when, found)
	}
}

// Pods reach each other over the bridge, also after Open vSwitch was restarted.
func TestOVSTraffic(t *testing.T) {
	l := newOVSLab(t)
	a, madeA := l.plug(onPort("c1", portA, "10.7.0.5/24"))
	b, madeB := l.plug(onPort("c2", portB, "10.7.0.6/24"))
	nettest.Reaches(t, a, b, nettest.Addr("10.7.0.6"))
	nettest.Reaches(t, b, a, nettest.Addr("10.7.0.5"))
	row := l.sw.Ctl("--columns=external_ids", "--bare", "list", "Interface", madeA.HostLink)
	want := `attached-mac=fa:16:3e:00:00:05 fairlead=true fairlead-container=c1 fairlead-interface=eth0 fairlead-shut=true iface-id=` + portA + ` iface-status=active`
	if diff := cmp.Diff(want, strings.TrimSpace(row)); diff != "" {
		t.Errorf("external IDs (-want +got):\n%s", diff)
	}
	l.sw.Stop("ovs-vswitchd")
	l.sw.StartSwitch()
	nettest.Reaches(t, a, b, nettest.Addr("10.7.0.6"))
	l.remove(madeA)
	l.remove(madeB)
	l.nothingLeft("after all")
}

// deaf is a Shutter that shuts nothing.
type deaf struct{}

func (deaf) Shut(context.Context, string) error   { return nil }
func (deaf) Forget(context.Context, string) error { return nil }

func (deaf) IsShut(context.Context, string) (bool, error) { return true, nil }

// Own test, userspace Open vSwitch: the node answered the ARP of pods for its own addresses, with the MAC of
// the host end. Only Open vSwitch may.
func TestOVSNodeIsDeaf(t *testing.T) {
	l := newOVSLab(t)
	h := nettest.OpenHandle(t, l.host.Namespace())
	lo := nettest.LinkNamed(t, l.host.Namespace(), "lo")
	if err := h.AddrAdd(lo, &netlink.Addr{IPNet: link.ToIPNet(nettest.Prefix("10.7.0.9/32"))}); err != nil {
		t.Fatal(err)
	}
	other, _ := l.plug(onPort("c9", portB, "10.7.0.6/24"))
	answered := func(pod *link.Namespace) bool {
		t.Helper()
		nettest.Reaches(t, pod, other, nettest.Addr("10.7.0.6")) // the link carries packets
		_ = nettest.Talk(t, pod, l.host.Namespace(), nettest.Addr("10.7.0.9"), 300*time.Millisecond)
		neighbours, err := nettest.OpenHandle(t, pod).NeighList(0, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool { return n.IP.String() == "10.7.0.9" && len(n.HardwareAddr) == 6 })
	}
	pod, m := l.plug(onPort("c1", portA, "10.7.0.5/24"))
	if answered(pod) {
		t.Error("the node answers the pod")
	}
	l.remove(m)
	l.kind.shutter = deaf{}
	if pod, _ := l.plug(onPort("c2", portA, "10.7.0.5/24")); !answered(pod) {
		t.Error("without the packet filter the node does not answer either: the test proves nothing")
	}
}

// The pods' ends leave checksums to a device only if Open vSwitch completes them.
func TestOVSOffloads(t *testing.T) {
	for _, tt := range []struct{ name, option, says string }{
		{"checksums", "userspace-tso-enable=false", "off"},
		{"no checksums", "userspace-tso-enable=true", "on"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newOVSLab(t)
			l.sw.Ctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:"+tt.option)
			pod, _ := l.plug(onPort("c1", portA, "10.7.0.5/24"))
			out := ovslab.Run(t, pod, "ethtool", "-k", "eth0")
			if !strings.Contains(out, "tx-checksumming: "+tt.says) {
				t.Errorf("want tx-checksumming %s:\n%s", tt.says, out)
			}
		})
	}
}

// Own test, a repeated ADD on Open vSwitch: it had no traffic. A daemon that is killed
// between any two changes leaves what the next one finds by itself, removes by the record, or
// replaces.
func TestOVSKilled(t *testing.T) {
	const byRecord, bySearch, again = "remove by the record", "remove by the search", "make again"
	for _, change := range []string{ovsLinked, ovsRowed, ovsShut, ovsForgot, ovsUnrowed} {
		for _, then := range []string{byRecord, bySearch, again} {
			t.Run(change+", "+then, func(t *testing.T) {
				l := newOVSLab(t)
				other, _ := l.plug(onPort("c2", portB, "10.7.0.6/24"))
				i := onPort("c1", portA, "10.7.0.5/24")
				pod := nettest.NewNamespace(t)
				m := l.kind.Plan(pod.Place(), i)
				l.killAt(change, pod, i)
				l.restart()
				switch then {
				case byRecord:
					l.remove(m)
				case bySearch:
					for _, f := range l.found() {
						if f.ContainerID == "c1" {
							l.remove(f.Made)
						}
					}
				case again:
					if err := l.kind.Make(t.Context(), pod, i); err != nil {
						t.Fatalf("Make again: %v", err)
					}
					if diffs := l.differences(pod, m); len(diffs) > 0 {
						t.Errorf("made again, it differs: %q", diffs)
					}
					nettest.Reaches(t, pod, other, nettest.Addr("10.7.0.6"))
					l.remove(m)
				}
				if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"lo"}) {
					t.Errorf("the pod has %v", links)
				}
				l.remove(l.kind.Plan(link.Place{}, Interface{ContainerID: "c2", Name: "eth0"}))
				l.nothingLeft(then)
			})
		}
	}
}

// killAt ends a Make, and a Remove after it, right after a change.
func (l *ovsLab) killAt(change string, pod *link.Namespace, i Interface) {
	l.t.Helper()
	l.kind.after = func(is string) {
		if is == change {
			runtime.Goexit()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.kind.Make(l.t.Context(), pod, i); err != nil {
			l.t.Errorf("Make: %v", err)
		}
		if err := l.kind.Remove(l.t.Context(), l.kind.Plan(pod.Place(), i)); err != nil {
			l.t.Errorf("Remove: %v", err)
		}
		l.t.Errorf("no change is %q", change)
	}()
	<-done
}

// Without ovsdb-server nothing is made, and a removal is not complete.
func TestOVSDBIsAway(t *testing.T) {
	l := newOVSLab(t)
	pod, m := l.plug(onPort("c1", portA, "10.7.0.5/24"))
	l.sw.Stop("ovs-vswitchd")
	l.sw.Stop("ovsdb-server")
	links := nettest.LinkNames(t, l.host.Namespace())
	second := nettest.NewNamespace(t)
	err := l.kind.Make(t.Context(), second, onPort("c2", portB, "10.7.0.6/24"))
	if !errors.Is(err, ovsdb.ErrUnavailable) || !strings.Contains(err.Error(), l.sw.Socket()) {
		t.Errorf("Make: %v, want ErrUnavailable with the socket", err)
	} else {
		nettest.Fits(t, err)
	}
	if diff := cmp.Diff(links, nettest.LinkNames(t, l.host.Namespace())); diff != "" {
		t.Errorf("links of the host after Make (-before +after):\n%s", diff)
	}
	if found := l.found(); len(found) != 1 || found[0].Bridge != "br-int" || found[0].Astray(m) {
		t.Errorf("found %+v, want the host end, as it should be", found)
	}
	if _, err := l.kind.Differences(t.Context(), m, Inspected{}); !errors.Is(err, ovsdb.ErrUnavailable) {
		t.Errorf("Differences: %v, want ErrUnavailable", err)
	}
	if err := l.kind.Remove(t.Context(), l.kind.Plan(link.Place{}, Interface{ContainerID: "c9", Name: "eth0"})); err != nil {
		t.Errorf("Remove of what is not known: %v", err)
	}
	for _, time := range []string{"first", "second"} {
		if err := l.kind.Remove(t.Context(), m); !errors.Is(err, ovsdb.ErrUnavailable) {
			t.Errorf("%s Remove: %v, want ErrUnavailable", time, err)
		}
	}
	if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"lo"}) {
		t.Errorf("the pod has %v", links)
	}
	l.sw.StartDatabase()
	l.sw.StartSwitch()
	found := l.found()
	want := m
	want.Namespace = link.Place{}
	if len(found) != 1 {
		t.Fatalf("found %+v, want the row", found)
	}
	if diff := cmp.Diff(want, found[0].Made); diff != "" {
		t.Errorf("found by the row (-made +found):\n%s", diff)
	}
	l.remove(found[0].Made)
	if err := l.kind.Make(t.Context(), second, onPort("c2", portB, "10.7.0.6/24")); err != nil {
		t.Errorf("Make: %v", err)
	}
	l.remove(l.kind.Plan(second.Place(), onPort("c2", portB, "10.7.0.6/24")))
	l.nothingLeft("after all")
}

// A pod's next sandbox takes the port over from the earlier one, which does not take it
// back.
func TestOVSNextSandbox(t *testing.T) {
	l := newOVSLab(t)
	other, madeOther := l.plug(onPort("c9", portB, "10.7.0.6/24"))
	first, madeFirst := l.plug(onPort("c1", portA, "10.7.0.5/24"))
	second, madeSecond := l.plug(onPort("c2", portA, "10.7.0.5/24"))
	ports := l.sw.Ports()
	slices.Sort(ports)
	if want := slices.Sorted(slices.Values([]string{madeOther.HostLink, madeSecond.HostLink})); !slices.Equal(ports, want) {
		t.Errorf("ports %q, want %q", ports, want)
	}
	if diffs := l.differences(second, madeSecond); len(diffs) > 0 {
		t.Errorf("the second sandbox differs: %q", diffs)
	}
	if diffs := l.differences(first, madeFirst); len(diffs) != 1 || !strings.Contains(diffs[0], "is no port of Open vSwitch") {
		t.Errorf("the first sandbox differs: %q", diffs)
	}
	if repaired, err := l.kind.Repair(t.Context(), madeFirst); repaired || err != nil {
		t.Errorf("repair of the first sandbox: %t, %v", repaired, err)
	}
	nettest.Reaches(t, other, second, nettest.Addr("10.7.0.5"))
	l.remove(madeFirst)
	if diffs := l.differences(second, madeSecond); len(diffs) > 0 {
		t.Errorf("after the end of the first, the second sandbox differs: %q", diffs)
	}
	l.remove(madeSecond)
	l.remove(madeOther)
	l.nothingLeft("after all")
}

// Another program's port, name or bridge is left alone, also if it comes while a pod is
// plugged.
func TestOVSOfOthers(t *testing.T) {
	i := onPort("c1", portA, "10.7.0.5/24")
	host := HostName("c1", "eth0")
	taken := []string{"add-port", "br-int", "tap1", "--", "set", "Interface", "tap1", "type=internal", "external_ids:iface-id=" + portA}
	for _, tt := range []struct {
		name         string
		before, then []string
		bridge       string
		want         error
		says         string
	}{
		{name: "port", before: taken, want: link.ErrExists, says: `is interface tap1 of bridge "br-int", which another program has made`},
		{name: "name", before: []string{"add-port", "br-int", host, "--", "set", "Interface", host, "type=internal"}, want: link.ErrExists, says: host + " in Open vSwitch"},
		{name: "no bridge", bridge: "br-ex", want: link.ErrNoParent, says: "bridge br-ex in Open vSwitch"},
		{name: "port meanwhile", then: taken, want: ovsdb.ErrRefused, says: "wait of Interface: timed out"},
		{name: "no bridge meanwhile", then: []string{"del-br", "br-int"}, want: link.ErrNoParent, says: "was removed meanwhile"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newOVSLab(t)
			if tt.before != nil {
				l.sw.Ctl(tt.before...)
			}
			l.kind.after = func(change string) {
				if change == ovsLinked && tt.then != nil {
					l.sw.Ctl(tt.then...)
				}
			}
			i.Binding = v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: portA, Bridge: tt.bridge}}
			pod := nettest.NewNamespace(t)
			err := l.kind.Make(t.Context(), pod, i)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Make: %v, want %v with %q", err, tt.want, tt.says)
			}
			if links := nettest.LinkNames(t, pod); !slices.Equal(links, []string{"lo"}) {
				t.Errorf("the pod has %v", links)
			}
			rows := l.sw.Ctl("--columns=name,external_ids", "--bare", "list", "Interface")
			l.remove(l.kind.Plan(pod.Place(), i))
			if after := l.sw.Ctl("--columns=name,external_ids", "--bare", "list", "Interface"); after != rows || strings.Contains(rows, "fairlead-container") {
				t.Errorf("interfaces in Open vSwitch before Remove:\n%s\nafter:\n%s", rows, after)
			}
		})
	}
}

// A host end is of one kind: that of a Linux bridge does not take it for its own.
func TestOVSIsNoBridge(t *testing.T) {
	l := newOVSLab(t)
	_, m := l.plug(onPort("c1", portA, "10.7.0.5/24"))
	if found := find(t, newBridge(l.host)); len(found) > 0 {
		t.Errorf("the kind bridge finds %+v", found)
	}
	l.remove(m)
	l.nothingLeft("after all")
}
