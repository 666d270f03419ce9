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

	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// TestFilterPods makes pairs of links and reads the messages of a watch. It gets all
// messages about the other links, and none about the link with a host end's name.
func TestFilterPods(t *testing.T) {
	nettest.NeedRoot(t)
	ns := nettest.NewNamespace(t)
	pod := plug.HostName("c0ffee", "eth0")
	got := map[string]bool{}
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
				// A link's name ends with a zero, also in the message.
				if bytes.Contains(m.Data, append([]byte(name), 0)) {
					got[name] = true
				}
			}
		}
		return err
	})
	if diff := cmp.Diff(map[string]bool{"flat0": true, "uplink0": true}, got); diff != "" {
		t.Errorf("messages about (-want +got):\n%s", diff)
	}
}

// A pod that comes and goes causes no message. The first pod changes the features of the
// bridge, which the filter drops, and its carrier, which the filter keeps.
func TestFilterKeepsPodsBack(t *testing.T) {
	k := newCable(t, 1)[0]
	apply(t, k, stateOf(0, 2))
	bridge := int32(nettest.LinkNamed(t, k.Namespace(), nettest.DefaultBridge).Attrs().Index)
	uplink := int32(nettest.LinkNamed(t, k.Namespace(), "up0").Attrs().Index)
	carrier := false
	for i, name := range []string{"first", "second", "third"} {
		ns := nettest.NewNamespace(t)
		var got []syscall.NetlinkMessage
		nettest.In(t, k.Namespace(), func() (err error) {
			sock, err := hostEvents(watchBuffer).subscribe()
			if err != nil {
				return err
			}
			defer func() { _ = sock.Close() }()
			err = kinds.All(k.Sockets).Make(t.Context(), ns, numberedPlug(i))
			if err == nil && i > 0 { // the first stays
				err = unplug(t, k, numberedPlug(i))
			}
			if err != nil {
				return err
			}
			got, err = pending(sock)
			return err
		})
		for _, m := range got {
			switch index := int32(binary.NativeEndian.Uint32(m.Data[4:])); { //nolint:gosec // as the kernel wrote it
			case m.Header.Type == unix.RTM_NEWADDR && (index == bridge || index == uplink):
				continue // duplicate address detection has ended for an address
			case !carrier && index == bridge && m.Header.Type == unix.RTM_NEWLINK && !hasEvent(t, m):
				carrier = true // the first pod's, which may come late
				continue
			}
			t.Errorf("the %s: got %+v", name, m.Header)
		}
	}
}

// pending returns the messages that wait in a socket.
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

// hasEvent reports whether a message about a link contains its cause.
func hasEvent(t *testing.T, m syscall.NetlinkMessage) bool {
	t.Helper()
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		t.Fatal(err)
	}
	return attr(attrs, linkEvent) != nil
}
