package probe

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dontFragment has the packets of a socket dropped where a link is too small for them. The
// MTU of the path that the kernel has learned is not used, so each try sends the packet.
func dontFragment(network, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		if strings.HasSuffix(network, "6") {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
			return
		}
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
	if err != nil {
		return err
	}
	return failed
}

// transparent returns a control of sockets that leaves by a link and may send from an address
// that no link has. The kernel allows it to CAP_NET_RAW.
func transparent(link string) func(network, address string, conn syscall.RawConn) error {
	return func(network, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) {
			level, option := unix.IPPROTO_IP, unix.IP_TRANSPARENT
			if strings.HasSuffix(network, "6") {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
			}
			if failed = unix.SetsockoptInt(int(fd), level, option, 1); failed != nil {
				failed = fmt.Errorf("set IP_TRANSPARENT, which needs the capability NET_RAW: %w", failed)
				return
			}
			failed = unix.BindToDevice(int(fd), link)
		})
		if err != nil {
			return err
		}
		return failed
	}
}
