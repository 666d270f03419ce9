package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name     string
		args     []string
		children []child
		want     string // the error
	}{
		{"two", []string{"eth0", "a=1", "b=4094"}, []child{{"a", 1}, {"b", 4094}}, ""},
		{"no child", []string{"eth0"}, nil, "1 arguments; want a parent and at least one child: vlanshim PARENT CHILD=VLAN"},
		{"no VLAN", []string{"eth0", "a"}, nil, `child "a"; must be LINK=VLAN with a VLAN from 1 to 4094`},
		{"no link", []string{"eth0", "=7"}, nil, `child "=7"; must be LINK=VLAN with a VLAN from 1 to 4094`},
		{"VLAN 0", []string{"eth0", "a=0"}, nil, `child "a=0"; must be LINK=VLAN with a VLAN from 1 to 4094`},
		{"VLAN 4095", []string{"eth0", "a=4095"}, nil, `child "a=4095"; must be LINK=VLAN with a VLAN from 1 to 4094`},
		{"a VLAN twice", []string{"eth0", "a=7", "b=7"}, nil, `child "b=7"; VLAN 7 is that of a already`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, children, err := parse(test.args)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.children, children, cmp.AllowUnexported(child{})); diff != "" {
				t.Errorf("children (-want +got):\n%s", diff)
			}
		})
	}
}

// Frames of pods leave the machine with the tag of their child, and tagged frames reach the
// pod of that tag only, without it.
func TestTags(t *testing.T) {
	machine, outside := namespace(t), namespace(t)
	one, two := namespace(t), namespace(t)
	pair(t, machine, "eth0", outside, "wire")
	pair(t, machine, "c1", one, "eth0")
	pair(t, machine, "c2", two, "eth0")
	var s *shim
	err := machine.Do(func() error {
		var err error
		s, err = newShim("eth0", []child{{"c1", 101}, {"c2", 102}})
		return err
	})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip("this kernel has no tcx: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A socket of all protocols has frames as they are on the wire, a socket of one protocol
	// has them after the programs.
	wire, parent := open(t, outside, "wire", unix.ETH_P_ALL), open(t, machine, "eth0", testProtocol)
	podOne, podTwo := open(t, one, "eth0", unix.ETH_P_ALL), open(t, two, "eth0", unix.ETH_P_ALL)

	podOne.send("from one", 0)
	wire.want("from one", 101)
	podTwo.send("from two", 0)
	wire.want("from two", 102)
	parent.send("from the machine", 0)
	wire.want("from the machine", 0)

	wire.send("to one", 101)
	podOne.want("to one", 0)
	wire.send("to two", 102)
	podTwo.want("to two", 0)
	wire.send("to the machine", 0)
	parent.want("to the machine", 0)
	parent.wantNone()
	wire.send("to no pod", 103)
	podOne.wantNone()
	podTwo.wantNone()

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	podOne.send("after the end", 0)
	wire.wantNone()
}

func TestMissingChild(t *testing.T) {
	machine, outside := namespace(t), namespace(t)
	pair(t, machine, "eth0", outside, "wire")
	err := machine.Do(func() error {
		_, err := newShim("eth0", []child{{"missing", 101}})
		return err
	})
	if want := "child missing: route ip+net: no such network interface"; err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

func namespace(t *testing.T) *netlab.Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// pair makes a pair of links, each up in its namespace.
func pair(t *testing.T, a *netlab.Namespace, nameA string, b *netlab.Namespace, nameB string) {
	t.Helper()
	handles := [2]*netlink.Handle{}
	for i, ns := range []*netlab.Namespace{a, b} {
		var err error
		if handles[i], err = ns.Netlink(); err != nil {
			t.Fatal(err)
		}
		defer handles[i].Close()
	}
	file, err := os.Open(b.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(int(file.Fd()))}
	if err := handles[0].LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{nameA, nameB} {
		found, err := handles[i].LinkByName(name)
		if err == nil {
			err = handles[i].LinkSetUp(found)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The frames of the test have a protocol of their own.
const (
	testProtocol = 0x88b5
	vlanProtocol = 0x8100
	quiet        = 200 * time.Millisecond
)

// packets is a socket with the frames of a link.
type packets struct {
	*testing.T
	name string
	fd   int
}

func open(t *testing.T, ns *netlab.Namespace, name string, protocol uint16) *packets {
	t.Helper()
	p := &packets{T: t, name: name}
	err := ns.Do(func() error {
		handle, err := ns.Netlink()
		if err != nil {
			return err
		}
		defer handle.Close()
		found, err := handle.LinkByName(name)
		if err != nil {
			return err
		}
		network := protocol<<8 | protocol>>8 // in network byte order
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(network)); err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: found.Attrs().Index}),
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		)
	})
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	t.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

// send sends a broadcast frame, with a tag unless the VLAN is 0.
func (p *packets) send(text string, vlan uint16) {
	p.Helper()
	frame := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 1)
	if vlan != 0 {
		frame = binary.BigEndian.AppendUint16(frame, vlanProtocol)
		frame = binary.BigEndian.AppendUint16(frame, vlan)
	}
	frame = binary.BigEndian.AppendUint16(frame, testProtocol)
	frame = append(frame, text...)
	frame = append(frame, make([]byte, 60)...)
	if _, err := unix.Write(p.fd, frame); err != nil {
		p.Fatalf("send from %s: %v", p.name, err)
	}
}

// want reads the next frame of the test.
func (p *packets) want(text string, vlan uint16) {
	p.Helper()
	got, gotVLAN, err := p.next(5 * time.Second)
	if err != nil || got != text || gotVLAN != vlan {
		p.Fatalf("%s got %q with VLAN %d, %v; want %q with VLAN %d", p.name, got, gotVLAN, err, text, vlan)
	}
}

// wantNone fails the test if a frame of the test arrives.
func (p *packets) wantNone() {
	p.Helper()
	if got, vlan, err := p.next(quiet); err == nil {
		p.Errorf("%s got %q with VLAN %d; want none", p.name, got, vlan)
	}
}

// next returns the text and the VLAN ID of the next frame of the test.
func (p *packets) next(timeout time.Duration) (string, uint16, error) {
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return "", 0, err
	}
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) {
		frame, control := make([]byte, 2048), make([]byte, 256)
		n, controls, _, _, err := unix.Recvmsg(p.fd, frame, control, 0)
		if err != nil {
			return "", 0, err
		}
		if n < 14 || binary.BigEndian.Uint16(frame[12:]) != testProtocol {
			continue
		}
		vlan, err := vlanOf(control[:controls])
		return string(bytes.TrimRight(frame[14:n], "\x00")), vlan, err
	}
	return "", 0, os.ErrDeadlineExceeded
}

// vlanOf returns the tag, which the kernel keeps beside the frame.
func vlanOf(control []byte) (uint16, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA {
			auxiliary := *(*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
			if auxiliary.Status&unix.TP_STATUS_VLAN_VALID == 0 {
				return 0, nil
			}
			return auxiliary.Vlan_tci & vlanMask, nil
		}
	}
	return 0, fmt.Errorf("no auxiliary data in %x", control)
}
