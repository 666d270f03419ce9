package child_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/plugtest"
)

// trunkMTU is the MTU of the networks in a cloud whose own link has 1500 bytes.
const trunkMTU = 1442

// parentMAC is the MAC of the machine's port, and podMAC that of a pod's port.
var (
	parentMAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}
	podMAC    = net.HardwareAddr{0xfa, 0x16, 0x3e, 9, 9, 9}
)

// trunk is a node that is a machine, with the trunk of its port. The switch of the hypervisor
// is a bridge that filters VLANs: untagged frames of the machine reach the peer of VLAN 0,
// and tagged frames that of their VLAN.
type trunk struct {
	*testing.T
	node  *link.Sockets
	kinds *kinds.Table
	peers map[int]*link.Namespace // by VLAN
}

// machineAddress is the address of the node on its own network.
var machineAddress = netip.MustParseAddr("10.9.0.2")

// peerOf returns the address of a peer.
func peerOf(vlan int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(vlan), 1}) }

// podAddress returns the address of the pod in a VLAN.
func podAddress(vlan int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(vlan), 7}) }

// inSubnet returns an address with the prefix length of all subnets.
func inSubnet(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}}
}

func newTrunk(t *testing.T, vlans ...int) *trunk {
	t.Helper()
	nettest.NeedLinkType(t, "vlan")
	n := &trunk{T: t, node: nettest.NewNode(t), peers: map[int]*link.Namespace{}}
	n.kinds = kinds.All(n.node)
	host := nettest.NewNamespace(t)
	h, on := nettest.OpenHandle(t, host), true
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}, VlanFiltering: &on}
	nettest.Must(t, errors.Join(h.LinkAdd(bridge), h.LinkSetUp(bridge)))
	nettest.AddCable(t, host, "tap", bridge.Index, nettest.Cable{To: n.node.Namespace(), Name: parent, MTU: trunkMTU})
	at := nettest.OpenHandle(t, n.node.Namespace())
	p0 := nettest.LinkNamed(t, n.node.Namespace(), parent)
	nettest.Must(t, errors.Join(at.LinkSetHardwareAddr(p0, parentMAC), at.AddrAdd(p0, inSubnet(machineAddress)), at.LinkSetUp(p0)))
	for _, vlan := range append([]int{0}, vlans...) {
		peer, port := nettest.NewNamespace(t), fmt.Sprint("peer", vlan)
		n.peers[vlan] = peer
		nettest.AddCable(t, host, port, bridge.Index, nettest.Cable{To: peer, Name: parent, MTU: trunkMTU})
		if vlan != 0 {
			tap, access := nettest.LinkNamed(t, host, "tap"), nettest.LinkNamed(t, host, port)
			nettest.Must(t, errors.Join(h.BridgeVlanAdd(tap, uint16(vlan), false, false, false, false), h.BridgeVlanDel(access, 1, true, true, false, false), h.BridgeVlanAdd(access, uint16(vlan), true, true, false, false)))
		}
		in, l := nettest.OpenHandle(t, peer), nettest.LinkNamed(t, peer, parent)
		nettest.Must(t, errors.Join(in.AddrAdd(l, inSubnet(peerOf(vlan))), in.LinkSetUp(l)))
	}
	return n
}

// pod describes the interface of a pod in a VLAN of the trunk, as the controller records it.
func (n *trunk) pod(vlan int) plug.Interface {
	return plug.Interface{
		ContainerID: fmt.Sprint("c", vlan), Name: "eth0", MAC: podMAC, MTU: trunkMTU,
		Binding:   v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{ParentMAC: parentMAC.String(), PortID: "port", ID: int32(vlan)}},
		Addresses: []netip.Prefix{netip.PrefixFrom(podAddress(vlan), 24)},
	}
}

// plug plugs a pod, and returns its namespace and record.
func (n *trunk) plug(i plug.Interface) (*link.Namespace, plug.Made) {
	n.Helper()
	ns := nettest.NewNamespace(n.T)
	m, err := n.kinds.Plan(ns.Place(), i)
	nettest.Must(n.T, err)
	nettest.Must(n.T, n.kinds.Make(n.Context(), ns, i))
	return ns, m
}

// A pod on a trunk has the network of its VLAN, with the MAC of its port. Frames as large as
// the MTU of the machine's link pass with their tag. Other links of the node have the MAC of
// the parent too. The machine keeps its own address.
func TestTrunk(t *testing.T) {
	n := newTrunk(t, 101, 102)
	h, p0 := nettest.OpenHandle(t, n.node.Namespace()), nettest.LinkNamed(t, n.node.Namespace(), parent)
	nettest.Must(t, errors.Join(
		h.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "a.9", ParentIndex: p0.Attrs().Index, HardwareAddr: parentMAC}, VlanId: 9, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}),
		h.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "a-child", ParentIndex: p0.Attrs().Index, HardwareAddr: parentMAC}, Mode: netlink.MACVLAN_MODE_BRIDGE}),
		h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "a-bridge", HardwareAddr: parentMAC}}),
	))
	for _, vlan := range []int{101, 102} {
		ns, m := n.plug(n.pod(vlan))
		nettest.Reaches(t, ns, n.peers[vlan], peerOf(vlan))
		nettest.Reaches(t, n.peers[vlan], ns, podAddress(vlan))
		largePasses(t, ns, n.peers[vlan], peerOf(vlan))
		neighbors, err := nettest.OpenHandle(t, n.peers[vlan]).NeighList(0, netlink.FAMILY_V4)
		nettest.Must(t, err)
		var macs []string
		for _, e := range neighbors {
			macs = append(macs, e.HardwareAddr.String())
		}
		if diff := cmp.Diff([]string{podMAC.String()}, macs); diff != "" {
			t.Errorf("VLAN %d: MACs that the peer knows (-want +got):\n%s", vlan, diff)
		}
		got := inspected(t, ns, "eth0")
		differences, err := n.kinds.Differences(t.Context(), m, got)
		if m.Parent != parent || got.MTU != trunkMTU || err != nil || len(differences) != 0 {
			t.Errorf("VLAN %d: record %+v, interface %+v, differences %v, %v", vlan, m, got, differences, err)
		}
		nettest.Reaches(t, n.peers[0], n.node.Namespace(), machineAddress)
		nettest.Must(t, n.kinds.Remove(t.Context(), m))
		wantLinks(t, ns, "lo")
	}
}

// A pod whose addresses are pairs of the machine's port has the network of the machine, with
// the MAC of its pair.
func TestPairs(t *testing.T) {
	n := newTrunk(t)
	nettest.NeedLinkType(t, "macvlan")
	i := n.pod(0)
	i.MAC = net.HardwareAddr{0xf2, 0x16, 0x3e, 9, 9, 9}
	i.Binding = v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{ParentMAC: parentMAC.String(), PortID: "port", Mode: "bridge"}}
	ns, m := n.plug(i)
	nettest.Reaches(t, ns, n.peers[0], peerOf(0))
	nettest.Reaches(t, n.peers[0], ns, podAddress(0))
	largePasses(t, ns, n.peers[0], peerOf(0))
	nettest.Reaches(t, n.peers[0], n.node.Namespace(), machineAddress)
	if got := inspected(t, ns, "eth0"); m.Parent != parent || got.MAC != i.MAC.String() || got.MTU != trunkMTU {
		t.Errorf("record %+v, interface %+v", m, got)
	}
	nettest.Must(t, n.kinds.Remove(t.Context(), m))
	wantLinks(t, ns, "lo")
	i.MTU++
	if err := n.kinds.Make(t.Context(), ns, i); !errors.Is(err, link.ErrInvalid) {
		t.Errorf("MTU above that of the parent: %v", err)
	}
}

// The VLAN of a trunk is free for the next pod when the pod before is removed, or has ended while
// a process holds its namespace. An interface that an ADD left behind is replaced. kuryr 1.5:
// each of these was an error of the kernel's, after which the pod did not start.
func TestTrunkLeftovers(t *testing.T) {
	n := newTrunk(t, 101)
	first, m := n.plug(n.pod(101))
	nettest.Must(t, n.kinds.Make(t.Context(), first, n.pod(101))) // the ADD is repeated in the same sandbox
	nettest.Reaches(t, first, n.peers[101], peerOf(101))

	next := n.pod(101)
	next.ContainerID = "next"
	ns := nettest.NewNamespace(t)
	err := n.kinds.Make(t.Context(), ns, next)
	if !errors.Is(err, link.ErrExists) || !strings.Contains(err.Error(), "VLAN 101 of parent "+parentMAC.String()+" is in use by interface eth0 of container c101") {
		t.Errorf("the VLAN of a living pod: %v", err)
	}
	wantLinks(t, ns, "lo")
	hold(t, first)
	endPath(t, first)
	nettest.Must(t, n.kinds.Make(t.Context(), ns, next))
	wantLinks(t, first, "lo")
	nettest.Reaches(t, ns, n.peers[101], peerOf(101))

	nettest.Must(t, n.kinds.Remove(t.Context(), m)) // the late DEL of the first sandbox
	nettest.Reaches(t, ns, n.peers[101], peerOf(101))
	m, err = n.kinds.Plan(ns.Place(), next)
	nettest.Must(t, err)
	nettest.Must(t, n.kinds.Remove(t.Context(), m))
	nettest.Must(t, n.kinds.Remove(t.Context(), m)) // again
	again, _ := n.plug(n.pod(101))
	nettest.Reaches(t, again, n.peers[101], peerOf(101))
}

// The MTU of the pods' network is not above that of the machine's link. Bug 1863212 of Kuryr: it
// was, and large packets were lost without an error.
func TestTrunkMTU(t *testing.T) {
	n := newTrunk(t, 101)
	i := n.pod(101)
	i.MTU++
	ns := nettest.NewNamespace(t)
	err := n.kinds.Make(t.Context(), ns, i)
	if !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), "mtu 1443 of eth0 must not be above the 1442 bytes of parent p0") {
		t.Errorf("MTU above that of the parent: %v", err)
	}
	wantLinks(t, ns, "lo")
}

// A pod reaches no other VLAN of its node's trunk, and not the network of the machine itself,
// by frames with tags of its own.
func TestTrunkTagged(t *testing.T) {
	n := newTrunk(t, 101, 102)
	attacker, _ := n.plug(n.pod(101))
	victim, _ := n.plug(plugtest.Changed(n.pod(102), func(i *plug.Interface) { i.MAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 8, 8, 8} }))
	from, own := frames(t, attacker, "eth0"), frames(t, n.peers[101], parent)
	// The tags are obeyed: the machine itself reaches each VLAN.
	peer := frames(t, n.peers[102], parent)
	sendFrame(t, frames(t, n.node.Namespace(), parent), "machine", 102)
	nextFrame(t, peer, "machine")
	others := map[string]struct{ at, mate int }{
		"the peer of the other pod": {frames(t, n.peers[102], parent), frames(t, victim, "eth0")},
		"the other pod":             {frames(t, victim, "eth0"), frames(t, n.peers[102], parent)},
		"the peer of the machine":   {frames(t, n.peers[0], parent), frames(t, n.node.Namespace(), parent)},
	}
	for _, tc := range []struct {
		name string
		tags []uint16 // outermost first
	}{
		{"no tag", nil},
		{"the VLAN of another pod", []uint16{102}},
		{"the VLAN of another pod, twice", []uint16{102, 102}},
		{"its own VLAN, then another", []uint16{101, 102}},
		{"a priority, for the untagged network", []uint16{0}},
		{"the VLAN of untagged frames", []uint16{1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mark := "attack: " + tc.name
			sendFrame(t, from, mark, tc.tags...)
			if got := nextFrame(t, own, "attack"); !strings.Contains(got, mark) {
				t.Fatalf("the peer of the attacker got %q, want %q", got, mark)
			}
			for name, other := range others {
				sendFrame(t, other.mate, "end")
				if got := nextFrame(t, other.at, "attack", "end"); strings.Contains(got, mark) {
					t.Errorf("%s got the frame", name)
				}
			}
		})
	}
}

// frames opens a socket for whole frames on a link.
func frames(t *testing.T, ns *link.Namespace, name string) (fd int) {
	t.Helper()
	index := nettest.LinkNamed(t, ns, name).Attrs().Index
	nettest.In(t, ns, func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}),
		)
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// sendFrame sends a text to all, with tags.
func sendFrame(t *testing.T, fd int, text string, tags ...uint16) {
	t.Helper()
	frame := append(bytes.Repeat([]byte{0xff}, 6), podMAC...)
	for _, tag := range tags {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), tag)
	}
	frame = append(binary.BigEndian.AppendUint16(frame, 0x88b5), text...) // a type for experiments
	if _, err := unix.Write(fd, append(frame, make([]byte, 60)...)); err != nil {
		t.Fatalf("sending %q: %v", text, err)
	}
}

// nextFrame returns the next frame that has one of some words.
func nextFrame(t *testing.T, fd int, words ...string) string {
	t.Helper()
	buf := make([]byte, 2048)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			t.Fatalf("waiting for %q: %v", words, err)
		}
		for _, word := range words {
			if bytes.Contains(buf[:n], []byte(word)) {
				return string(buf[:n])
			}
		}
	}
}

// largePasses sends a packet of the size of the MTU, in one piece, and wants it back.
func largePasses(t *testing.T, from, to *link.Namespace, target netip.Addr) {
	t.Helper()
	const headers = 28 // of IPv4 and UDP
	at := netip.AddrPortFrom(target, 4243).String()
	var server net.PacketConn
	var c net.Conn
	nettest.In(t, to, func() (err error) {
		server, err = net.ListenPacket("udp", at)
		return err
	})
	defer server.Close()
	go func() {
		buf := make([]byte, 2*trunkMTU)
		for {
			n, sender, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], sender)
		}
	}()
	whole := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		failed := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		})
		return errors.Join(failed, err)
	}}
	nettest.In(t, from, func() (err error) {
		c, err = whole.DialContext(t.Context(), "udp", at)
		return err
	})
	defer c.Close()
	_, err := c.Write(make([]byte, trunkMTU-headers))
	nettest.Must(t, errors.Join(err, c.SetReadDeadline(time.Now().Add(10*time.Second))))
	if n, err := c.Read(make([]byte, 2*trunkMTU)); err != nil || n != trunkMTU-headers {
		t.Errorf("a packet of %d bytes: %d came back, %v", trunkMTU, n+headers, err)
	}
}
