package link

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct{ command, _ uint32 }

// ifreqPointer is struct ifreq of linux/if.h with the pointer ifr_data.
type ifreqPointer struct {
	name [unix.IFNAMSIZ]byte
	data *ethtoolValue
	_    [16]byte // the rest of the union, at least
}

// NoChecksumOffload has the kernel complete the checksums of the packets that a link sends,
// as ethtool -K NAME tx off does. It also ends the segmentation of TCP by the link.
func (c *Conn) NoChecksumOffload(name string) error {
	value := &ethtoolValue{command: unix.ETHTOOL_STXCSUM}
	req := ifreqPointer{data: value}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return fmt.Errorf("having the kernel complete the checksums of %s: %w", name, errno)
	}
	return nil
}
