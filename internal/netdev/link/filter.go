package link

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Constants of linux/filter.h that the system package lacks.
const (
	ancillary       = -0x1000 // SKF_AD_OFF
	ancillaryNlattr = 12      // SKF_AD_NLATTR: the offset of attribute X, from A on
)

// Instruction is one instruction of a filter. A test jumps to a label, or continues with
// the next instruction if the label is empty.
type Instruction struct {
	unix.SockFilter
	label   string
	yes, no string
}

// At gives an instruction a label.
func (i Instruction) At(label string) Instruction {
	i.label = label
	return i
}

// assemble replaces labels by the number of instructions to skip.
func assemble(lines []Instruction) []unix.SockFilter {
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

func code(c uint16, k int32) Instruction {
	return Instruction{SockFilter: unix.SockFilter{Code: c, K: uint32(k)}}
}

// Load loads a number of a size from an offset in the message.
func Load(size uint16, at int32) Instruction { return code(unix.BPF_LD|unix.BPF_ABS|size, at) }

// LoadX is Load with register X added to the offset.
func LoadX(size uint16, at int32) Instruction { return code(unix.BPF_LD|unix.BPF_IND|size, at) }

// Set sets register A.
func Set(value int32) Instruction { return code(unix.BPF_LD|unix.BPF_IMM, value) }

// SetX sets register X.
func SetX(value int32) Instruction { return code(unix.BPF_LDX|unix.BPF_IMM, value) }

// ToX copies register A to X.
func ToX() Instruction { return code(unix.BPF_MISC|unix.BPF_TAX, 0) }

// FindAttr loads the offset of the attribute with type X, searching from offset A on; 0
// means that there is none.
func FindAttr() Instruction { return Load(unix.BPF_W, ancillary+ancillaryNlattr) }

// End ends the program and keeps a number of bytes of the message, all for -1.
func End(bytes int32) Instruction { return code(unix.BPF_RET|unix.BPF_K, bytes) }

// IfEqual jumps to yes if A has a value, otherwise to no.
func IfEqual(value uint32, yes, no string) Instruction { return test(unix.BPF_JEQ, value, yes, no) }

// IfAny jumps to yes if A has one of the bits, otherwise to no.
func IfAny(bits uint32, yes, no string) Instruction { return test(unix.BPF_JSET, bits, yes, no) }

func test(how uint16, value uint32, yes, no string) Instruction {
	return Instruction{SockFilter: unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | how, K: value}, yes: yes, no: no}
}

// Host16 returns a number in this machine's byte order as a filter loads it: a
// filter takes all numbers for network order.
func Host16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

// Host32 is Host16 for a longer number.
func Host32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}

// HeaderToX sets X to the length of the IPv4 header that the message begins with.
func HeaderToX() Instruction { return code(unix.BPF_LDX|unix.BPF_MSH|unix.BPF_B, 0) }

// Attach attaches a program to a socket.
func Attach(fd int, lines []Instruction) error {
	program := assemble(lines)
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
