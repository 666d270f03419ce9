package ipam

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// State of a slot.
type State byte

// The states of a listed slot. A slot that is not listed was never used.
const (
	// Taken: a holder has the address.
	Taken State = 'A'
	// Freed: it had a holder. It cools down, then it is free.
	Freed State = 'F'
	// Held: it is kept for a claim.
	Held State = 'H'
	// Damaged: the record cannot be read, or contradicts another. It is kept
	// as it is and the address is not handed out until a person has looked.
	Damaged State = '?'

	unused State = 0
)

// Slot is what a block knows of one of its addresses.
type Slot struct {
	Ordinal int
	Addr    netip.Addr
	State   State
	// Holder of a taken slot.
	Holder Holder
	// Since the slot has been taken, freed or held.
	Since time.Time
	// Generation grows with every change of the slot.
	Generation uint64
	// Claim is the key of a held slot.
	Claim string
}

// slot is a Slot in a block. Times are in milliseconds of Unix time, so that a
// slot is equal to what it becomes after encoding and decoding.
type slot struct {
	state  State
	gen    uint64
	at     int64
	holder Holder
	claim  string
}

const (
	// maxSlotLength is the limit of the API for one string. The longest names
	// that Kubernetes allows fit.
	maxSlotLength = 1024
	// maxGeneration leaves room for every change that will ever happen.
	maxGeneration = math.MaxInt64
	// maxTime is the year 11476, in milliseconds.
	maxTime = 299_999_999_999_999
	// maxClaim is the longest key of a claim.
	maxClaim = 253
)

// Validate says whether the holder can be written down. PodUID and Interface
// are required. It fails with ErrBadHolder.
func (h Holder) Validate() error {
	fields := []struct {
		name, value string
		limit       int
		required    bool
		ok          func(byte) bool
	}{
		{"pod UID", h.PodUID, 64, true, uidByte},
		{"interface", h.Interface, 15, true, interfaceByte},
		{"namespace", h.Namespace, 63, false, nameByte},
		{"pod name", h.Pod, 253, false, nameByte},
		{"node name", h.Node, 253, false, nameByte},
	}
	for _, f := range fields {
		switch {
		case f.value == "" && f.required:
			return fmt.Errorf("%w: the %s is empty", ErrBadHolder, f.name)
		case len(f.value) > f.limit:
			return fmt.Errorf("%w: the %s has %d bytes, at most %d are possible", ErrBadHolder, f.name, len(f.value), f.limit)
		case f.value == "-" && !f.required:
			return fmt.Errorf("%w: the %s is %q, which stands for none", ErrBadHolder, f.name, f.value)
		}
		for i := range len(f.value) {
			if !f.ok(f.value[i]) {
				return fmt.Errorf("%w: the %s %q has the character %q, which a name cannot have", ErrBadHolder, f.name, f.value, f.value[i])
			}
		}
	}
	return nil
}

// encode returns "uid ns/pod/if node", with "-" for what is empty.
func (h Holder) encode() string {
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	return h.PodUID + " " + dash(h.Namespace) + "/" + dash(h.Pod) + "/" + h.Interface + " " + dash(h.Node)
}

func decodeHolder(uid, path, node string) (Holder, bool) {
	undash := func(s string) string {
		if s == "-" {
			return ""
		}
		return s
	}
	ns, rest, ok1 := strings.Cut(path, "/")
	pod, iface, ok2 := strings.Cut(rest, "/")
	h := Holder{PodUID: uid, Interface: iface, Namespace: undash(ns), Pod: undash(pod), Node: undash(node)}
	return h, ok1 && ok2 && h.Validate() == nil
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}

func uidByte(c byte) bool {
	return nameByte(c) || c >= 'A' && c <= 'Z' || c == '_' || c == ':'
}

func interfaceByte(c byte) bool { return c > ' ' && c <= '~' && c != '/' }

func claimByte(c byte) bool { return c > ' ' && c <= '~' }

// encode writes a slot as one of
//
//	<ordinal> A <generation> <since> <uid> <namespace>/<pod>/<interface> <node>
//	<ordinal> F <generation> <since>
//	<ordinal> H <generation> <since> <claim>
//
// with the time in milliseconds of Unix time and "-" for an empty name.
func (s *slot) encode(ordinal int) string {
	b := make([]byte, 0, 128)
	b = strconv.AppendInt(b, int64(ordinal), 10)
	b = append(b, ' ', byte(s.state), ' ')
	b = strconv.AppendUint(b, s.gen, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, s.at, 10)
	switch s.state {
	case Taken:
		b = append(b, ' ')
		b = append(b, s.holder.encode()...)
	case Held:
		b = append(b, ' ')
		b = append(b, s.claim...)
	default:
	}
	return string(b)
}

// decodeSlot reads what encode writes, and nothing else: a string that would
// be written differently is refused, so that nothing is lost by rewriting it.
// The ordinal is -1 when not even that can be read.
func decodeSlot(text string) (ordinal int, s slot, ok bool) {
	f := strings.Split(text, " ")
	ordinal = decodeOrdinal(f[0])
	if ordinal < 0 || len(text) > maxSlotLength || len(f) < 4 || len(f[1]) != 1 {
		return ordinal, slot{}, false
	}
	s.state = State(f[1][0])
	gen, err1 := strconv.ParseUint(f[2], 10, 64)
	at, err2 := strconv.ParseInt(f[3], 10, 64)
	if err1 != nil || err2 != nil || gen < 1 || gen > maxGeneration || at < 0 || at > maxTime {
		return ordinal, slot{}, false
	}
	s.gen, s.at = gen, at
	switch {
	case s.state == Taken && len(f) == 7:
		s.holder, ok = decodeHolder(f[4], f[5], f[6])
	case s.state == Freed && len(f) == 4:
		ok = true
	case s.state == Held && len(f) == 5:
		s.claim, ok = f[4], validClaim(f[4])
	}
	if !ok || s.encode(ordinal) != text {
		return ordinal, slot{}, false
	}
	return ordinal, s, true
}

func decodeOrdinal(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= slotsPerBlock || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

func validClaim(key string) bool {
	if len(key) < 1 || len(key) > maxClaim {
		return false
	}
	for i := range len(key) {
		if !claimByte(key[i]) {
			return false
		}
	}
	return true
}

// ceilMillis rounds up: a freed address must not rest too short.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return min(max(ms, 1), maxTime)
}
