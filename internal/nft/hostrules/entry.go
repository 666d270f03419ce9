package hostrules

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

const (
	errorTarget = "ERROR" // marks the start of a user-defined chain

	// Verdicts of a standard target: -1 minus the kernel's verdict, or an offset to jump
	// to.
	legacyDrop   = -1
	legacyAccept = -2
	legacyQueue  = -4
	legacyReturn = -5

	sizeofPart = 32 // struct xt_entry_match and xt_entry_target, before their data
	partName   = 2
	partRev    = 31

	// Bits of invflags.
	notIn, notOut, notSource, notTarget, notProtocol = 0x01, 0x02, 0x08, 0x10, 0x40
)

// layout has the offsets and sizes of the parts of struct ipt_entry or struct ip6t_entry.
type layout struct {
	addressSize                       int
	in, protocol, flags, inverted     int
	gotoFlag, fragmentFlag            byte
	targetOffset, nextOffset, matches int
	sourceInHeader, targetInHeader    uint32
}

var (
	layout4 = layout{
		addressSize: 4, in: 16, protocol: 80, flags: 82, inverted: 83, gotoFlag: 2, fragmentFlag: 1,
		targetOffset: 88, nextOffset: 90, matches: 112, sourceInHeader: 12, targetInHeader: 16,
	}
	layout6 = layout{
		addressSize: 16, in: 64, protocol: 128, flags: 131, inverted: 132, gotoFlag: 4,
		targetOffset: 140, nextOffset: 142, matches: 168, sourceInHeader: 8, targetInHeader: 24,
	}
)

// entry is one rule of iptables.
type entry struct {
	offset  int
	head    []byte // struct ipt_entry or ip6t_entry
	matches []*expr.Match
	target  string // empty for a verdict or a jump
	data    []byte // of the target
}

func (e entry) standard() bool { return e.target == "" && len(e.data) >= 4 }
func (e entry) verdict() int {
	return int(int32(binary.NativeEndian.Uint32(e.data))) //nolint:gosec // the kernel's are signed
}
func (e entry) name() string { return unix.ByteSliceToString(e.data) }

var errTruncated = errors.New("an entry is cut off")

// entries parses a table; errors: errTruncated if an entry exceeds its bounds.
func (l layout) entries(blob []byte) ([]entry, error) {
	var out []entry
	for at := 0; at < len(blob); {
		b := blob[at:]
		if len(b) < l.matches {
			return nil, errTruncated
		}
		target, next := int(binary.NativeEndian.Uint16(b[l.targetOffset:])), int(binary.NativeEndian.Uint16(b[l.nextOffset:]))
		if target < l.matches || next < target+sizeofPart || next > len(b) {
			return nil, errTruncated
		}
		e := entry{offset: at, head: b[:l.matches]}
		family := xt.TableFamily(unix.NFPROTO_IPV4)
		if l.addressSize > 4 {
			family = xt.TableFamily(unix.NFPROTO_IPV6)
		}
		for m := l.matches; m < target; {
			size := int(binary.NativeEndian.Uint16(b[m:]))
			if size < sizeofPart || m+size > target {
				return nil, errTruncated
			}
			match := &expr.Match{Name: partNamed(b[m:]), Rev: uint32(b[m+partRev])}
			info, err := xt.Unmarshal(match.Name, family, match.Rev, b[m+sizeofPart:m+size])
			if err == nil { // otherwise the extension is unknown
				match.Info = info
			}
			e.matches = append(e.matches, match)
			m += size
		}
		e.target, e.data = partNamed(b[target:]), b[target+sizeofPart:next]
		out = append(out, e)
		at += next
	}
	return out, nil
}

func partNamed(b []byte) string { return unix.ByteSliceToString(b[partName:partRev]) }

// chainNames returns the names of the chains by the offset of their first rule.
func chainNames(all []entry) map[int]string {
	names := map[int]string{}
	for i, e := range all[:max(len(all)-1, 0)] {
		if e.target == errorTarget {
			names[all[i+1].offset] = e.name()
		}
	}
	return names
}

// exprs returns the expressions that nftables would have for an entry.
func (l layout) exprs(e entry, names map[int]string) []expr.Any {
	var out []expr.Any
	inverted, flags := e.head[l.inverted], e.head[l.flags]
	compare := func(not byte, data []byte) *expr.Cmp {
		if inverted&not != 0 {
			return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}
		}
		return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
	}
	address := func(at int, inHeader uint32, not byte) {
		a, mask := e.head[at:at+l.addressSize], e.head[at+2*l.addressSize:at+3*l.addressSize]
		if strings.Trim(string(mask), "\x00") == "" {
			return
		}
		out = append(out,
			&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: inHeader, Len: uint32(l.addressSize)},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(l.addressSize), Mask: mask, Xor: make([]byte, l.addressSize)},
			compare(not, a))
	}
	address(0, l.sourceInHeader, notSource)
	address(l.addressSize, l.targetInHeader, notTarget)
	link := func(at int, key expr.MetaKey, not byte) {
		name, mask := e.head[at:at+ifNameSize], e.head[at+2*ifNameSize:at+3*ifNameSize]
		if n := len(strings.TrimRight(string(mask), "\x00")); n > 0 {
			out = append(out, &expr.Meta{Key: key, Register: 1}, compare(not, name[:n]))
		}
	}
	link(l.in, expr.MetaKeyIIFNAME, notIn)
	link(l.in+ifNameSize, expr.MetaKeyOIFNAME, notOut)
	if protocol := binary.NativeEndian.Uint16(e.head[l.protocol:]); protocol != 0 {
		out = append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, compare(notProtocol, []byte{byte(protocol)}))
	}
	if flags&l.fragmentFlag != 0 {
		out = append(out, &expr.Match{Name: "fragment"})
	}
	for _, m := range e.matches {
		out = append(out, m)
	}
	return append(out, l.action(e, flags&l.gotoFlag != 0, names))
}

// action returns the expression for the target of an entry.
func (l layout) action(e entry, isGoto bool, names map[int]string) expr.Any {
	if !e.standard() {
		return &expr.Target{Name: e.target}
	}
	switch v := e.verdict(); {
	case v == legacyDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case v == legacyAccept:
		return &expr.Verdict{Kind: expr.VerdictAccept}
	case v == legacyQueue:
		return &expr.Verdict{Kind: expr.VerdictQueue}
	case v < 0:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	case isGoto:
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: names[v]}
	default:
		return &expr.Verdict{Kind: expr.VerdictJump, Chain: names[v]}
	}
}
