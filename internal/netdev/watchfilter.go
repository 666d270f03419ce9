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
	// Of struct ndmsg.
	neighStateAt = unix.SizeofNlMsghdr + 8
	neighFlagsAt = unix.SizeofNlMsghdr + 10
	// attrHeader is the length and type before an attribute's value.
	attrHeader = unix.SizeofRtAttr
	// hostNameAttr is the length of an attribute with a host end's name.
	hostNameAttr = attrHeader + len(hostPrefix) + hostDigits + 1
)

// filterPods makes the kernel keep back what it says of the host ends of pods,
// of ports as the bridge sees them, and of neighbours that come to be known and
// are forgotten. A pod that comes or goes is a dozen such messages, and each
// would wake the daemon while it plugs the next. Neighbours that were written,
// as the tunnel's are, and those that failed, as one that is being deleted, pass.
func filterPods(fd int) error {
	program := []unix.SockFilter{
		load(unix.BPF_H|unix.BPF_ABS, typeAt),
		ifEqual(host16(unix.RTM_NEWNEIGH), 14, 0),
		ifEqual(host16(unix.RTM_DELNEIGH), 13, 0),
		ifEqual(host16(unix.RTM_NEWLINK), 1, 0),
		ifEqual(host16(unix.RTM_DELLINK), 0, 17), // else keep
		load(unix.BPF_B|unix.BPF_ABS, familyAt),
		ifEqual(unix.AF_BRIDGE, 16, 0), // drop
		{Code: unix.BPF_LD | unix.BPF_IMM, K: attrsAt},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.IFLA_IFNAME},
		load(unix.BPF_W|unix.BPF_ABS, ancillary+ancillaryNlattr),
		ifEqual(0, 11, 0), // no name: keep
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		load(unix.BPF_H|unix.BPF_IND, 0),
		ifEqual(host16(uint16(hostNameAttr)), 0, 8), // else keep
		load(unix.BPF_H|unix.BPF_IND, attrHeader),
		ifEqual(uint32(hostPrefix[0])<<8|uint32(hostPrefix[1]), 7, 6), // drop, else keep

		load(unix.BPF_B|unix.BPF_ABS, familyAt),
		ifEqual(unix.AF_BRIDGE, 2, 0),
		load(unix.BPF_H|unix.BPF_ABS, neighStateAt),
		ifAny(host16(unix.NUD_PERMANENT|unix.NUD_FAILED), 2, 3), // keep, else drop
		load(unix.BPF_B|unix.BPF_ABS, neighFlagsAt),
		ifAny(unix.NTF_SELF, 0, 1), // else drop
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

// ifAny skips yes instructions if any of the bits is set, else no.
func ifAny(bits uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jt: yes, Jf: no, K: bits}
}

// host16 is a number of this machine's byte order as a filter loads it, which
// takes all for network order.
func host16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}
