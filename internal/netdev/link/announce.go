package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ethernetHeader = 14
	ipv6Header     = 40
	// advertisementLength is that of a neighbor advertisement with one option (RFC 4861).
	advertisementLength = 32
)

// Announce tells the neighbors of a link that addresses have its MAC: they may remember the
// MAC of another link that had an address before. It sends an ARP announcement (RFC 5227) or
// an unsolicited neighbor advertisement (RFC 4861) for each address.
func (n *Namespace) Announce(name string, mac net.HardwareAddr, addresses []netip.Addr) error {
	if len(mac) != 6 {
		return fmt.Errorf("announce addresses of %s with MAC %q: must have 6 bytes", name, mac)
	}
	var index int
	err := n.With(func(c *Conn) (err error) {
		index, err = c.Index(name)
		return err
	})
	if err == nil && index == 0 {
		err = ErrNoLink
	}
	if err != nil {
		return fmt.Errorf("announce addresses of %s: %w", name, err)
	}
	var fd int
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // it receives nothing
		return err
	})
	if err != nil {
		return fmt.Errorf("announce addresses of %s: open a packet socket: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var errs []error
	for _, a := range addresses {
		frame := announcement(mac, a)
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index, Halen: 6}); err != nil {
			errs = append(errs, fmt.Errorf("announce address %v of %s: %w", a, name, err))
		}
	}
	return errors.Join(errs...)
}

// announcement returns the frame that announces an address.
func announcement(mac net.HardwareAddr, a netip.Addr) []byte {
	if a.Is4() {
		frame := header(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP)
		frame = append(frame, 0, 1, 0x08, 0, 6, 4, 0, 1) // Ethernet, IPv4, a request
		frame = append(append(frame, mac...), a.AsSlice()...)
		return append(append(frame, make([]byte, 6)...), a.AsSlice()...)
	}
	all := netip.IPv6LinkLocalAllNodes()
	frame := header(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6)
	frame = append(frame, 0x60, 0, 0, 0, 0, advertisementLength, unix.IPPROTO_ICMPV6, 255)
	frame = append(append(frame, a.AsSlice()...), all.AsSlice()...)
	const advertisement, override, targetOption = 136, 0x20, 2
	message := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, a.AsSlice()...)
	message = append(append(message, targetOption, 1), mac...)
	// The pseudo header of RFC 8200: addresses, length, protocol.
	pseudo := append(append(append([]byte{}, frame[ethernetHeader+8:ethernetHeader+ipv6Header]...), 0, 0, 0, advertisementLength, 0, 0, 0, unix.IPPROTO_ICMPV6), message...)
	binary.BigEndian.PutUint16(message[2:], internetChecksum(pseudo))
	return append(frame, message...)
}

func header(to, from net.HardwareAddr, protocol uint16) []byte {
	frame := make([]byte, 0, ethernetHeader+ipv6Header+advertisementLength)
	return binary.BigEndian.AppendUint16(append(append(frame, to...), from...), protocol)
}

// internetChecksum is that of RFC 1071, for an even number of bytes.
func internetChecksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // it is at most 0xffff
}
