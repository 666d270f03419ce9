package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/nettest"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// TestFilterPods makes pairs of links, one with a host end's name, and reads
// what a watch is told: of the others everything, of that one nothing.
func TestFilterPods(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNamespace(t)
	pod := plug.HostName("c0ffee", "eth0")
	told := map[string]bool{}
	nettest.In(t, ns, func() error {
		sock, err := hostEvents(watchBuffer).subscribe()
		if err != nil {
			return err
		}
		defer func() { _ = sock.Close() }()
		for name, peer := range map[string]string{pod: "peer-a", "flat0": "peer-b", "uplink0": "peer-c"} {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}
			if err := errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link)); err != nil {
				return err
			}
		}
		messages, err := pending(sock)
		for _, m := range messages {
			for _, name := range []string{pod, "flat0", "uplink0"} {
				// A link's name is ended by a zero, also in the message.
				if bytes.Contains(m.Data, append([]byte(name), 0)) {
					told[name] = true
				}
			}
		}
		return err
	})
	if diff := cmp.Diff(map[string]bool{"flat0": true, "uplink0": true}, told); diff != "" {
		t.Errorf("told of (-want +got):\n%s", diff)
	}
}

// A pod that comes and goes wakes nobody. The first one changes what the bridge can do,
// which is kept back, and brings it its carrier.
func TestFilterKeepsPodsBack(t *testing.T) {
	k := newCable(t, 1)[0]
	apply(t, k, stateOf(0, 2))
	bridge := int32(nettest.LinkNamed(t, k.Namespace(), nettest.DefaultBridge).Attrs().Index)
	uplink := int32(nettest.LinkNamed(t, k.Namespace(), "up0").Attrs().Index)
	carrier := false
	for i, name := range []string{"first", "second", "third"} {
		ns := nettest.NewNamespace(t)
		var told []syscall.NetlinkMessage
		nettest.In(t, k.Namespace(), func() (err error) {
			sock, err := hostEvents(watchBuffer).subscribe()
			if err != nil {
				return err
			}
			defer func() { _ = sock.Close() }()
			err = plug.New(k.Sockets).Make(t.Context(), ns, numberedPlug(i))
			if err == nil && i > 0 { // the first stays
				err = unplug(t, k, numberedPlug(i))
			}
			if err != nil {
				return err
			}
			told, err = pending(sock)
			return err
		})
		for _, m := range told {
			switch index := int32(binary.NativeEndian.Uint32(m.Data[4:])); { //nolint:gosec // as the kernel wrote it
			case m.Header.Type == unix.RTM_NEWADDR && (index == bridge || index == uplink):
				continue // an address of theirs has been found to be nobody else's
			case !carrier && index == bridge && m.Header.Type == unix.RTM_NEWLINK && !hasEvent(t, m):
				carrier = true // the first pod's, which may come late
				continue
			}
			t.Errorf("the %s: told of %+v", name, m.Header)
		}
	}
}

// pending are the messages that wait in a socket.
func pending(sock *os.File) (messages []syscall.NetlinkMessage, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(int(sock.Fd()), buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return messages, nil
		}
		if err != nil {
			return nil, err
		}
		more, err := syscall.ParseNetlinkMessage(bytes.Clone(buf[:n]))
		if err != nil {
			return nil, err
		}
		messages = append(messages, more...)
	}
}

// hasEvent tells whether a message about a link says why it was sent.
func hasEvent(t *testing.T, m syscall.NetlinkMessage) bool {
	t.Helper()
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		t.Fatal(err)
	}
	return attr(attrs, linkEvent) != nil
}
