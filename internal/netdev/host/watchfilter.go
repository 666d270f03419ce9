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

// Where things are in a message (RFC 3549 section 2.3): of any, about a link, a
// route, a neighbour and the settings of a link.
const (
	typeAt         = 4
	familyAt       = unix.SizeofNlMsghdr
	linkAttrsAt    = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	routeTableAt   = unix.SizeofNlMsghdr + 4
	neighStateAt   = unix.SizeofNlMsghdr + 8
	neighFlagsAt   = unix.SizeofNlMsghdr + 10
	netconfAttrsAt = unix.SizeofNlMsghdr + sizeofNetconfmsg
	// attrHeader is the length and type before an attribute's value.
	attrHeader = unix.SizeofRtAttr
	// hostNameAttr is the length of an attribute with a host end's name.
	hostNameAttr = attrHeader + len(plug.HostPrefix) + plug.HostDigits + 1
)

// Where a filter's program leads: to the end, or to what looks at a part of a message.
const (
	keep, drop                           = "keep", "drop"
	aLink, itsName, aNeighbour, itsFlags = "link", "name", "neighbour", "flags"
	aRoute, settings                     = "route", "settings"
)

// podFilter tells what comes of pods that come and go, two dozen messages for each,
// from what is left to eye. It drops what is said of host ends; of ports as the bridge
// sees them; of the bridge and others when nothing but what their cards can do
// changes; of the routes that addresses bring; of the settings of a link when it
// appears and goes, which a message about the link tells of; of neighbours that come
// to be known and are forgotten. Neighbours that were written, as the tunnel's are,
// and those that failed, as one that is being deleted, are kept.
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

	// All settings at once, and so this one, are told of when a link appears.
	set(netconfAttrsAt).at(settings), setX(netconfProxyNeigh), findAttr(),
	ifEqual(0, keep, drop),

	end(-1).at(keep),
	end(0).at(drop),
}

// filterPods makes the kernel keep back what podFilter drops: each message would wake
// the daemon while it plugs the next pod.
func filterPods(fd int) error {
	program := assemble(podFilter)
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// instruction of a filter. A test leads to where another one is, or to the next.
type instruction struct {
	unix.SockFilter
	label   string
	yes, no string
}

func (i instruction) at(label string) instruction {
	i.label = label
	return i
}

// assemble replaces labels by how many instructions are skipped.
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

// load loads a number of a size, of what is at that place of the message; loadX at
// that place from X on.
func load(size uint16, at int32) instruction { return code(unix.BPF_LD|unix.BPF_ABS|size, at) }

func loadX(size uint16, at int32) instruction { return code(unix.BPF_LD|unix.BPF_IND|size, at) }

// set and setX set the two registers, toX the second to what the first is.
func set(value int32) instruction { return code(unix.BPF_LD|unix.BPF_IMM, value) }

func setX(value int32) instruction { return code(unix.BPF_LDX|unix.BPF_IMM, value) }

func toX() instruction { return code(unix.BPF_MISC|unix.BPF_TAX, 0) }

// findAttr finds where attribute X is, after where the attributes begin: 0 is nowhere.
func findAttr() instruction { return load(unix.BPF_W, ancillary+ancillaryNlattr) }

// end ends the program: so many bytes of the message are kept, at -1 all.
func end(bytes int32) instruction { return code(unix.BPF_RET|unix.BPF_K, bytes) }

// ifEqual and ifAny, of which any bit is enough, lead to yes or to no.
func ifEqual(value uint32, yes, no string) instruction { return test(unix.BPF_JEQ, value, yes, no) }

func ifAny(bits uint32, yes, no string) instruction { return test(unix.BPF_JSET, bits, yes, no) }

func test(how uint16, value uint32, yes, no string) instruction {
	return instruction{SockFilter: unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | how, K: value}, yes: yes, no: no}
}

// host16 and host32 are a number of this machine's byte order as a filter loads it, which
// takes all for network order.
func host16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func host32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
