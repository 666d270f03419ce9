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
	"golang.org/x/sys/unix"

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

// A pod that comes, is reached, and goes causes no message.
func TestFilterKeepsPodsBack(t *testing.T) {
	k := newCable(t, 1)[0]
	apply(t, k, stateOf(0, 2))
	uplink := int32(nettest.LinkNamed(t, k.Namespace(), "up0").Attrs().Index)
	for _, name := range []string{"first", "second", "third"} {
		ns := nettest.NewNamespace(t)
		var got []syscall.NetlinkMessage
		nettest.In(t, k.Namespace(), func() (err error) {
			sock, err := hostEvents(watchBuffer).subscribe()
			if err != nil {
				return err
			}
			defer func() { _ = sock.Close() }()
			p := podPlug(name, "10.244.1.5/32", "fd00:1:1::5/128")
			if err := kindsOf(k).Make(t.Context(), ns, p); err != nil {
				return err
			}
			for _, a := range p.Addresses {
				nettest.Reaches(t, k.Namespace(), ns, a.Addr())
			}
			if err := unplug(t, k, p); err != nil {
				return err
			}
			got, err = pending(sock)
			return err
		})
		for _, m := range got {
			if m.Header.Type == unix.RTM_NEWADDR && int32(binary.NativeEndian.Uint32(m.Data[4:])) == uplink { //nolint:gosec // as the kernel wrote it
				continue // duplicate address detection has ended for an address
			}
			t.Errorf("the %s: got %+v %x", name, m.Header, m.Data)
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
