package netdev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Constants of linux/filter.h that the system package lacks.
const (
	ancillary       = -0x1000 // SKF_AD_OFF
	ancillaryNlattr = 12      // SKF_AD_NLATTR: the offset of attribute X, from A on
)

// Where things are in a message about a link (RFC 3549 section 2.3.3.1).
const (
	typeAt   = 4
	familyAt = unix.SizeofNlMsghdr
	attrsAt  = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	// attrHeader is the length and type before an attribute's value.
	attrHeader = unix.SizeofRtAttr
	// hostNameAttr is the length of an attribute with a host end's name.
	hostNameAttr = attrHeader + len(hostPrefix) + hostDigits + 1
)

// filterPods makes the kernel keep back what it says of the host ends of pods,
// and of ports as the bridge sees them. A pod that comes or goes is a dozen
// such messages, and each would wake the daemon while it plugs the next.
func filterPods(fd int) error {
	program := []unix.SockFilter{
		load(unix.BPF_H|unix.BPF_ABS, typeAt),
		ifEqual(host16(unix.RTM_NEWLINK), 1, 0),
		ifEqual(host16(unix.RTM_DELLINK), 0, 11), // else keep
		load(unix.BPF_B|unix.BPF_ABS, familyAt),
		ifEqual(unix.AF_BRIDGE, 10, 0), // drop
		{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.IFLA_IFNAME},
		load(unix.BPF_W|unix.BPF_ABS, ancillary+ancillaryNlattr),
		ifEqual(0, 5, 0), // no name: keep
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		load(unix.BPF_H|unix.BPF_IND, 0),
		ifEqual(host16(uint16(hostNameAttr)), 0, 2), // else keep
		load(unix.BPF_H|unix.BPF_IND, attrHeader),
		ifEqual(uint32(hostPrefix[0])<<8|uint32(hostPrefix[1]), 1, 0), // drop, else keep
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

func load(mode uint16, at int32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | mode, K: uint32(at)}
}

// ifEqual skips yes or no instructions.
func ifEqual(value uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: yes, Jf: no, K: value}
}

// host16 is a number of this machine's byte order as a filter loads it, which
// takes all for network order.
func host16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}
