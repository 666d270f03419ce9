package netdev

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestFilterPods makes pairs of links, one with a host end's name, and reads
// what a watch is told: of the others everything, of that one nothing.
func TestFilterPods(t *testing.T) {
	needRoot(t)
	ns := newNamespace(t)
	pod := HostName("c0ffee", "eth0")
	told := map[string]bool{}
	in(t, ns, func() error {
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
		buf := make([]byte, 64<<10)
		for {
			n, _, err := unix.Recvfrom(int(sock.Fd()), buf, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, name := range []string{pod, "flat0", "uplink0"} {
				// A link's name is ended by a zero, also in the message.
				if bytes.Contains(buf[:n], append([]byte(name), 0)) {
					told[name] = true
				}
			}
		}
	})
	if diff := cmp.Diff(map[string]bool{"flat0": true, "uplink0": true}, told); diff != "" {
		t.Errorf("told of (-want +got):\n%s", diff)
	}
}
