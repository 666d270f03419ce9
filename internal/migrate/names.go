package migrate

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// dashed returns an address or a range as whereabouts writes it in names: dashes replace
// the characters that names cannot have, and a name does not end with a dash.
func dashed(text string) string {
	if strings.HasSuffix(text, ":") {
		text += "0"
	}
	return strings.NewReplacer(":", "-", "/", "-").Replace(text)
}

// PoolName returns the name of the pool of a range; node is empty except in slice mode.
// The Lease for the slice of a node has the same name.
func PoolName(space, node string, r netip.Prefix) string {
	return prefixed(prefixed(dashed(r.String()), node), space)
}

// ReservationName returns the name of an address's reservation.
func ReservationName(space string, a netip.Addr) string {
	return prefixed(dashed(a.String()), space)
}

func prefixed(name, prefix string) string {
	if prefix == "" {
		return name
	}
	return prefix + "-" + name
}

// spaceOf returns the network_name in a pool's name; ok is false if the name does not end
// with the range. The name of a network or of a node may have dashes, so the text before
// the range is compared with the slices first; otherwise it is a network's name.
func spaceOf(p Pool, slices []SlicePool) (space string, ok bool) {
	before, ok := strings.CutSuffix(p.Name, dashed(p.Range))
	if !ok {
		return "", false
	}
	if before == "" {
		return "", true
	}
	before, ok = strings.CutSuffix(before, "-")
	if !ok {
		return "", false
	}
	for _, s := range slices {
		for node, part := range s.Slices {
			switch {
			case part != p.Range:
			case before == node:
				return "", true
			case before == prefixed(node, s.Name):
				return s.Name, true
			}
		}
	}
	return before, true
}

// place is an address of a space.
type place struct {
	space string
	addr  netip.Addr
}

// readings returns the addresses that a reservation's name can mean. There are several if
// the name of a network ends as an IPv6 address begins.
func readings(name string) []place {
	var out []place
	if a, err := netip.ParseAddr(name); err == nil && a.Is4() {
		return []place{{"", a}}
	}
	add := func(space, text string) {
		a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
		if err == nil && a.Is6() && a.Zone() == "" && dashed(a.String()) == text {
			out = append(out, place{space, a})
		}
	}
	add("", name)
	for i := range len(name) {
		if name[i] != '-' || i == 0 {
			continue
		}
		if a, err := netip.ParseAddr(name[i+1:]); err == nil && a.Is4() {
			out = append(out, place{name[:i], a})
			continue
		}
		add(name[:i], name[i+1:])
	}
	return out
}

// atOffset returns the address of an allocation; ok is false if offset is not an unsigned
// decimal number of 64 bits, or if the address would exceed the last one of the family.
// whereabouts writes the offset as 64 bits without a sign and reads it with one: it loses
// the upper half of an IPv6 /64, and folds a longer range.
func atOffset(base netip.Addr, offset string) (a netip.Addr, ok bool) {
	n, err := strconv.ParseUint(offset, 10, 64)
	if err != nil {
		return netip.Addr{}, false
	}
	if base.Is4() {
		b := base.As4()
		sum := uint64(binary.BigEndian.Uint32(b[:])) + n
		if sum > 0xffffffff || sum < n {
			return netip.Addr{}, false
		}
		binary.BigEndian.PutUint32(b[:], uint32(sum))
		return netip.AddrFrom4(b), true
	}
	b := base.As16()
	lo, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	hi, carry := bits.Add64(binary.BigEndian.Uint64(b[:8]), 0, carry)
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b), carry == 0
}

// offsetOf returns the offset of an address; ok is false if whereabouts could not read
// the offset again.
func offsetOf(base, a netip.Addr) (offset string, ok bool) {
	if base.Is4() != a.Is4() || a.Less(base) {
		return "", false
	}
	x, y := a.As16(), base.As16()
	lo, borrow := bits.Sub64(binary.BigEndian.Uint64(x[8:]), binary.BigEndian.Uint64(y[8:]), 0)
	hi, _ := bits.Sub64(binary.BigEndian.Uint64(x[:8]), binary.BigEndian.Uint64(y[:8]), borrow)
	if hi != 0 || lo>>63 != 0 || base.Is4() && lo >= 0xffffffff {
		return "", false
	}
	return strconv.FormatUint(lo, 10), true
}

// Leases returns the names of the Leases under which whereabouts writes: one for the
// cluster, and one for the slice of each node, with both names that it can have.
func Leases(s State) []string {
	names := []string{"whereabouts"}
	for _, pool := range s.Slices {
		for node, part := range pool.Slices {
			r, err := netip.ParsePrefix(part)
			if err != nil {
				continue
			}
			names = append(names, PoolName("", node, r), PoolName(pool.Name, node, r))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// describe names an object of whereabouts for people.
func (p Pool) describe(offset string) string {
	return fmt.Sprintf("IPPool %s/%s, offset %q", p.Namespace, p.Name, offset)
}

func (r Reservation) describe() string {
	return fmt.Sprintf("OverlappingRangeIPReservation %s/%s", r.Namespace, r.Name)
}
