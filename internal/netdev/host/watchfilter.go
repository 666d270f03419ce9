package host

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Constants of linux/filter.h that the system package lacks.
const (
	ancillary       = -0x1000 // SKF_AD_OFF
	ancillaryNlattr = 12      // SKF_AD_NLATTR: the offset of attribute X, from A on
)

// Attributes, and a value of one, that the system package lacks.
const (
	linkEvent         = 44 // IFLA_EVENT of linux/if_link.h
	eventFeatures     = 2  // IFLA_EVENT_FEATURES
	netconfProxyNeigh = 5  // of linux/netconf.h
)

// Offsets in a message (RFC 3549 section 2.3): of any kind, about a link, a route, a
// neighbour and the settings of a link.
const (
	typeAt         = 4
	familyAt       = unix.SizeofNlMsghdr
	linkAttrsAt    = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	routeTableAt   = unix.SizeofNlMsghdr + 4
	neighStateAt   = unix.SizeofNlMsghdr + 8
	neighFlagsAt   = unix.SizeofNlMsghdr + 10
	netconfAttrsAt = unix.SizeofNlMsghdr + sizeofNetconfmsg
	// attrHeader is the size of the length and type before an attribute's value.
	attrHeader = unix.SizeofRtAttr
	// hostNameAttr is the length of an attribute with a host end's name.
	hostNameAttr = attrHeader + len(plug.HostPrefix) + plug.HostDigits + 1
)

// Labels of the filter's program: its two ends, and the parts that test one kind of
// message.
const (
	keep, drop                           = "keep", "drop"
	aLink, itsName, aNeighbour, itsFlags = "link", "name", "neighbour", "flags"
	aRoute, settings                     = "route", "settings"
)

// podFilter drops the messages that the kernel sends when pods come and go, two dozen for
// each, and keeps the rest for eventFilter. It drops messages
//
//   - about host ends;
//   - about ports, from the bridge;
//   - about the bridge and other links if only the features of their cards change;
//   - about the routes that come with addresses;
//   - about the settings of a link that appears or goes, which has a message of its own;
//   - about neighbours that become known or are forgotten.
//
// It keeps neighbours that a program wrote, such as the tunnel's, and failed neighbours,
// such as those that are being deleted.
var podFilter = []instruction{
	load(unix.BPF_H, typeAt),
	ifEqual(host16(unix.RTM_NEWLINK), aLink, ""),
	ifEqual(host16(unix.RTM_DELLINK), aLink, ""),
	ifEqual(host16(unix.RTM_NEWROUTE), aRoute, ""),
	ifEqual(host16(unix.RTM_DELROUTE), aRoute, ""),
	ifEqual(host16(unix.RTM_NEWNEIGH), aNeighbour, ""),
	ifEqual(host16(unix.RTM_DELNEIGH), aNeighbour, ""),
	ifEqual(host16(unix.RTM_NEWNETCONF), settings, ""),
	ifEqual(host16(unix.RTM_DELNETCONF), drop, keep),

	load(unix.BPF_B, familyAt).at(aLink),
	ifEqual(unix.AF_BRIDGE, drop, ""),
	set(linkAttrsAt), setX(linkEvent), findAttr(),
	ifEqual(0, itsName, ""),
	toX(), loadX(unix.BPF_W, attrHeader),
	ifEqual(host32(eventFeatures), drop, ""),
	set(linkAttrsAt).at(itsName), setX(unix.IFLA_IFNAME), findAttr(),
	ifEqual(0, keep, ""),
	toX(), loadX(unix.BPF_H, 0),
	ifEqual(host16(uint16(hostNameAttr)), "", keep),
	loadX(unix.BPF_H, attrHeader),
	ifEqual(uint32(plug.HostPrefix[0])<<8|uint32(plug.HostPrefix[1]), drop, keep),

	load(unix.BPF_B, routeTableAt).at(aRoute),
	ifEqual(unix.RT_TABLE_LOCAL, drop, keep),

	load(unix.BPF_B, familyAt).at(aNeighbour),
	ifEqual(unix.AF_BRIDGE, itsFlags, ""),
	load(unix.BPF_H, neighStateAt),
	ifAny(host16(unix.NUD_PERMANENT|unix.NUD_FAILED), keep, drop),
	load(unix.BPF_B, neighFlagsAt).at(itsFlags),
	ifAny(unix.NTF_SELF, keep, drop),

	// The kernel reports all settings at once, and this one among them, when a link
	// appears.
	set(netconfAttrsAt).at(settings), setX(netconfProxyNeigh), findAttr(),
	ifEqual(0, keep, drop),

	end(-1).at(keep),
	end(0).at(drop),
}

// filterPods attaches podFilter to a socket: each message that the kernel delivers would
// wake the daemon while it plugs the next pod.
func filterPods(fd int) error {
	return attach(fd, podFilter)
}

// instruction is one instruction of a filter. A test jumps to a label, or continues with
// the next instruction if the label is empty.
type instruction struct {
	unix.SockFilter
	label   string
	yes, no string
}

func (i instruction) at(label string) instruction {
	i.label = label
	return i
}

// assemble replaces labels by the number of instructions to skip.
func assemble(lines []instruction) []unix.SockFilter {
	where := map[string]int{}
	for n, l := range lines {
		where[l.label] = n
	}
	out := make([]unix.SockFilter, len(lines))
	for n, l := range lines {
		where[""] = n + 1
		out[n] = l.SockFilter
		if l.Code&0x07 == unix.BPF_JMP { // BPF_CLASS
			out[n].Jt, out[n].Jf = uint8(where[l.yes]-n-1), uint8(where[l.no]-n-1)
		}
	}
	return out
}

func code(c uint16, k int32) instruction {
	return instruction{SockFilter: unix.SockFilter{Code: c, K: uint32(k)}}
}

// load loads a number of a size from an offset in the message. loadX adds register X to
// the offset.
func load(size uint16, at int32) instruction { return code(unix.BPF_LD|unix.BPF_ABS|size, at) }

func loadX(size uint16, at int32) instruction { return code(unix.BPF_LD|unix.BPF_IND|size, at) }

// set and setX set the registers A and X, toX copies A to X.
func set(value int32) instruction { return code(unix.BPF_LD|unix.BPF_IMM, value) }

func setX(value int32) instruction { return code(unix.BPF_LDX|unix.BPF_IMM, value) }

func toX() instruction { return code(unix.BPF_MISC|unix.BPF_TAX, 0) }

// findAttr loads the offset of the attribute with type X, searching from offset A on; 0
// means that there is none.
func findAttr() instruction { return load(unix.BPF_W, ancillary+ancillaryNlattr) }

// end ends the program and keeps a number of bytes of the message, all for -1.
func end(bytes int32) instruction { return code(unix.BPF_RET|unix.BPF_K, bytes) }

// ifEqual and ifAny jump to yes or no. For ifAny one common bit is enough.
func ifEqual(value uint32, yes, no string) instruction { return test(unix.BPF_JEQ, value, yes, no) }

func ifAny(bits uint32, yes, no string) instruction { return test(unix.BPF_JSET, bits, yes, no) }

func test(how uint16, value uint32, yes, no string) instruction {
	return instruction{SockFilter: unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | how, K: value}, yes: yes, no: no}
}

// host16 and host32 return a number in this machine's byte order as a filter loads it: a
// filter takes all numbers for network order.
func host16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func host32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
