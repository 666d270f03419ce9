package probe

import (
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
