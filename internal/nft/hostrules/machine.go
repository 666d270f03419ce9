package hostrules

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// stateNew is the bit of the state "new" in nftables (ct state) and in iptables
	// (xt_conntrack).
	stateNew           = 8
	ifNameSize         = 16
	ipv4Size, ipv6Size = 20, 40
	// maxElements is the size of the largest set that is searched.
	maxElements = 4096
)

// machine evaluates the expressions of one rule, as the kernel does. A missing register
// has an unknown value.
type machine struct {
	walk      *walk
	table     *nftables.Table
	registers map[uint32][]byte
}

// step evaluates an expression. Expressions that only load, count or log match.
func (m *machine) step(e expr.Any) answer {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			m.set(e.Register, m.meta(e.Key))
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			m.set(e.DestRegister, m.payload(e))
		}
	case *expr.Ct:
		if !e.SourceRegister {
			m.set(e.Register, connection(e.Key))
		}
	case *expr.Fib:
		m.set(e.Register, m.fib(e))
	case *expr.Immediate:
		m.set(e.Register, e.Data)
	case *expr.Bitwise:
		m.set(e.DestRegister, m.bitwise(e))
	case *expr.Cmp:
		have, ok := m.registers[e.Register]
		if !ok || len(have) < len(e.Data) {
			return maybe
		}
		return compare(e.Op, have[:len(e.Data)], e.Data)
	case *expr.Range:
		have, ok := m.registers[e.Register]
		if !ok || len(have) != len(e.FromData) || len(have) != len(e.ToData) {
			return maybe
		}
		in := bytes.Compare(have, e.FromData) >= 0 && bytes.Compare(have, e.ToData) <= 0
		return is(in == (e.Op == expr.CmpOpEq))
	case *expr.Match:
		return m.extension(e)
	case *expr.Counter, *expr.Log, *expr.Notrack:
	default:
		return maybe
	}
	return yes
}

func (m *machine) set(register uint32, value []byte) {
	if value == nil {
		delete(m.registers, register)
		return
	}
	m.registers[register] = value
}

func compare(op expr.CmpOp, a, b []byte) answer {
	order := bytes.Compare(a, b)
	switch op {
	case expr.CmpOpEq:
		return is(order == 0)
	case expr.CmpOpNeq:
		return is(order != 0)
	case expr.CmpOpLt:
		return is(order < 0)
	case expr.CmpOpLte:
		return is(order <= 0)
	case expr.CmpOpGt:
		return is(order > 0)
	case expr.CmpOpGte:
		return is(order >= 0)
	}
	return maybe
}

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// meta returns a metadatum of the packet; nil if it is unknown.
func (m *machine) meta(key expr.MetaKey) []byte {
	p := m.walk.packet
	switch key {
	case expr.MetaKeyIIFNAME:
		return ifName(p.In)
	case expr.MetaKeyOIFNAME:
		return ifName(p.Out)
	case expr.MetaKeyIIF:
		return m.walk.rules.index(p.In)
	case expr.MetaKeyOIF:
		return m.walk.rules.index(p.Out)
	case expr.MetaKeyMARK:
		return native32(0)
	case expr.MetaKeyL4PROTO:
		return []byte{unix.IPPROTO_TCP}
	case expr.MetaKeyNFPROTO:
		if p.Source.Is4() {
			return []byte{unix.NFPROTO_IPV4}
		}
		return []byte{unix.NFPROTO_IPV6}
	case expr.MetaKeyPROTOCOL:
		if p.Source.Is4() {
			return []byte{8, 0}
		}
		return []byte{0x86, 0xdd}
	default:
		return nil
	}
}

// ifName returns a link's name as a register holds it; nil if name is empty.
func ifName(name string) []byte {
	if name == "" {
		return nil
	}
	b := make([]byte, ifNameSize)
	copy(b, name)
	return b
}

// payload returns a part of the packet's IP header; nil if it is unknown.
func (m *machine) payload(e *expr.Payload) []byte {
	if e.Base != expr.PayloadBaseNetworkHeader {
		return nil
	}
	p := m.walk.packet
	header, known := make([]byte, ipv6Size), 8
	if p.Source.Is4() {
		header, known = make([]byte, ipv4Size), 12
		header[9] = unix.IPPROTO_TCP
	} else {
		header[6] = unix.IPPROTO_TCP
	}
	copy(header[known:], append(p.Source.AsSlice(), p.Target.AsSlice()...))
	from, to := int(e.Offset), int(e.Offset+e.Len)
	protocol := to-from == 1 && header[min(from, len(header)-1)] == unix.IPPROTO_TCP
	if to > len(header) || from < known && !protocol {
		return nil
	}
	return header[from:to]
}

// connection returns a property of the packet's connection; nil if it is unknown.
func connection(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		return native32(stateNew)
	case expr.CtKeySTATUS, expr.CtKeyMARK:
		return native32(0)
	case expr.CtKeyDIRECTION:
		return []byte{0}
	default:
		return nil
	}
}

// fib returns the result of a lookup of the route back to the source: a link or its
// presence, 0 if there is none. It returns nil for any other lookup.
func (m *machine) fib(e *expr.Fib) []byte {
	if !e.FlagSADDR || !e.FlagIIF || !e.ResultOIF {
		return nil
	}
	switch {
	case e.FlagPRESENT && m.walk.packet.Astray:
		return []byte{0, 0, 0, 0}
	case e.FlagPRESENT:
		return []byte{1, 0, 0, 0}
	case m.walk.packet.Astray:
		return native32(0)
	}
	return m.walk.rules.index(m.walk.packet.In)
}

func (m *machine) bitwise(e *expr.Bitwise) []byte {
	have, ok := m.registers[e.SourceRegister]
	if !ok || len(e.Mask) != len(have) || len(e.Xor) != len(have) {
		return nil
	}
	out := make([]byte, len(have))
	for i := range have {
		out[i] = have[i]&e.Mask[i] ^ e.Xor[i]
	}
	return out
}

// extension evaluates a match of iptables.
func (m *machine) extension(e *expr.Match) answer {
	switch e.Name {
	case "comment":
		return yes
	case "conntrack":
		switch info := e.Info.(type) {
		case *xt.ConntrackMtinfo1:
			return states(info.MatchFlags, info.InvertFlags, uint16(info.StateMask))
		case *xt.ConntrackMtinfo2:
			return states(info.MatchFlags, info.InvertFlags, info.StateMask)
		case *xt.ConntrackMtinfo3:
			return states(info.MatchFlags, info.InvertFlags, info.StateMask)
		}
	case "rpfilter": // struct xt_rpfilter_info
		const loose, inverted = 1, 8
		if b, ok := e.Info.(*xt.Unknown); ok && len(*b) > 0 {
			return is(!m.walk.packet.Astray || (*b)[0]&loose != 0).invertIf((*b)[0]&inverted != 0)
		}
	case "mark": // struct xt_mark_mtinfo1
		if b, ok := e.Info.(*xt.Unknown); ok && len(*b) >= 9 {
			return is(bytes.Equal((*b)[:4], make([]byte, 4))).invertIf((*b)[8] != 0)
		}
	}
	return maybe
}

// states evaluates a match of the connection's state.
func states(match, invert, mask uint16) answer {
	const state = uint16(xt.ConntrackState | xt.ConntrackStateAlias)
	if match&state == 0 {
		return maybe
	}
	a := is(mask&stateNew != 0).invertIf(invert&state != 0)
	if a == yes && match&^state != 0 {
		return maybe // it has further conditions
	}
	return a
}

// lookup returns whether a register's value is in a set. For a map of verdicts it also
// returns the verdict of the value.
func (m *machine) lookup(e *expr.Lookup) (answer, *expr.Verdict) {
	set, elements := m.walk.rules.set(m.table, e.SetName)
	have, ok := m.registers[e.SourceRegister]
	verdicts := e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT
	if !ok || set == nil || len(elements) > maxElements || keySizesDiffer(elements, have) {
		if verdicts {
			return maybe, accepting(elements)
		}
		return maybe, nil
	}
	found := find(set.Interval, elements, have)
	switch {
	case e.IsDestRegSet && !verdicts:
		return maybe, nil
	case found == nil:
		return no.invertIf(e.Invert), nil
	case verdicts:
		return yes, verdictOf(found)
	}
	return yes.invertIf(e.Invert), nil
}

// keySizesDiffer reports whether a key of a set has another size than the value, as
// concatenated keys have.
func keySizesDiffer(elements []nftables.SetElement, value []byte) bool {
	return slices.ContainsFunc(elements, func(x nftables.SetElement) bool { return len(x.Key) != len(value) })
}

// accepting returns a verdict of a map that accepts a packet, or may accept it; nil if
// there is none. It stands for the map if the element is unknown, because only a possible
// accept changes the result.
func accepting(elements []nftables.SetElement) *expr.Verdict {
	var out *expr.Verdict
	for i := range elements {
		switch v := verdictOf(&elements[i]); {
		case v == nil:
		case v.Kind == expr.VerdictAccept:
			return v
		case v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto:
			out = &expr.Verdict{Kind: expr.VerdictAccept} // that chain may accept
		}
	}
	return out
}

// find returns the element that contains a value, or nil.
func find(interval bool, elements []nftables.SetElement, value []byte) *nftables.SetElement {
	var last *nftables.SetElement
	for i := range elements {
		x := &elements[i]
		order := bytes.Compare(x.Key, value)
		if !interval && order == 0 {
			return x
		}
		if !interval || order > 0 {
			continue
		}
		// If an interval ends where another begins, the beginning counts.
		if last == nil || bytes.Compare(x.Key, last.Key) > 0 || bytes.Equal(x.Key, last.Key) && last.IntervalEnd {
			last = x
		}
	}
	if last == nil || last.IntervalEnd {
		return nil
	}
	return last
}

// verdictOf returns the verdict of an element, or nil. The library does not decode it: it
// is a list of attributes.
func verdictOf(x *nftables.SetElement) *expr.Verdict {
	attrs, err := netlink.UnmarshalAttributes(x.Val)
	if err != nil {
		return nil
	}
	var v *expr.Verdict
	for _, a := range attrs {
		switch {
		case a.Type == unix.NFTA_VERDICT_CODE && len(a.Data) == 4:
			v = &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(a.Data)))} //nolint:gosec // the kernel's are signed
		case a.Type == unix.NFTA_VERDICT_CHAIN && v != nil:
			v.Chain = unix.ByteSliceToString(a.Data)
		}
	}
	return v
}

var (
	world4 = netip.MustParseAddr("192.0.2.1")
	world6 = netip.MustParseAddr("2001:db8::1")
)

// World returns an address that no node has, of the same family as the given address. It
// is reserved for documentation (RFC 5737, RFC 3849).
func World(family netip.Addr) netip.Addr {
	if family.Is4() {
		return world4
	}
	return world6
}
