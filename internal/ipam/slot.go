package ipam

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// State is the state of a slot.
type State byte

// The states of a slot with a record. A slot without a record was never used.
const (
	// Taken: the address has a holder.
	Taken State = 'A'
	// Freed: the address had a holder. It cools down, then it is free.
	Freed State = 'F'
	// Held: the address is kept for a claim.
	Held State = 'H'
	// Damaged: the record is unreadable or contradicts another. It is kept unchanged,
	// and the address is not handed out until a person has corrected the record.
	Damaged State = '?'

	unused State = 0
)

// sharedLetter is the letter of a taken slot with two holders. Versions that do not know it
// treat the record as damaged, so they never hand the address out.
const sharedLetter byte = 'M'

// Slot is the record of one address of a block.
type Slot struct {
	Ordinal int
	Addr    netip.Addr
	State   State
	// Holder of a taken slot; zero otherwise.
	Holder Holder
	// Since is when the slot was taken, freed or held.
	Since time.Time
	// Second is the second holder of a taken slot, since Joined; zero for none. While a
	// virtual machine migrates, its two launchers share an address.
	Second Holder
	Joined time.Time
	// Generation grows with every change of the slot.
	Generation uint64
	// Claim is the key of a claim; empty for none. A held slot is kept for it, and a
	// taken slot will be when its holder frees it.
	Claim string
}

// Holders yields the holders of the slot, each with when it got the address.
func (s Slot) Holders() iter.Seq2[Holder, time.Time] {
	return func(yield func(Holder, time.Time) bool) {
		if s.State != Taken || !yield(s.Holder, s.Since) {
			return
		}
		if s.Second != (Holder{}) {
			yield(s.Second, s.Joined)
		}
	}
}

// Has reports whether h is a holder of the slot.
func (s Slot) Has(h Holder) bool {
	for has := range s.Holders() {
		if has.Same(h) {
			return true
		}
	}
	return false
}

// SinceOf returns when h, a holder of the slot, got the address; zero for any other pod.
func (s Slot) SinceOf(h Holder) time.Time {
	for has, since := range s.Holders() {
		if has.Same(h) {
			return since
		}
	}
	return time.Time{}
}

// Past is a holding that has ended.
type Past struct {
	// Holder had the address. Only the beginning of the pod's UID is known, unless the
	// address has had no other holder since.
	Holder Holder
	// Since and Until the holder had the address.
	Since, Until time.Time
}

// slot is a Slot as a block keeps it. Times are milliseconds of Unix time, so that
// encoding and decoding return an equal slot.
type slot struct {
	state State
	gen   uint64
	at    int64
	// holder of a taken slot, or the last holder of a freed slot.
	holder Holder
	// since is when the last holder of a freed slot took it.
	since int64
	// second is the second holder of a taken slot, since joined; zero for none.
	second Holder
	joined int64
	claim  string
	// past are the holdings before that of holder, the newest first, as encodePast
	// writes them.
	past string
}

const (
	// maxSlotLength is the limit of the API for one string, in bytes. The longest names
	// that Kubernetes allows fit.
	maxSlotLength = 1024
	// maxGeneration is more than the number of changes that will ever happen.
	maxGeneration = math.MaxInt64
	// maxTime is the year 11476, in milliseconds.
	maxTime = 299_999_999_999_999
	// maxClaim is the longest key of a claim: a namespace, a slash and a name.
	maxClaim = 63 + 1 + 253
	// maxHoldings is how many holdings a slot records, including the current one. Each
	// past holding costs 70 to 90 bytes with usual names.
	maxHoldings = 3
	// pastUID is how many characters of a past holder's UID are kept: as many as in the
	// name of its PodAttachment.
	pastUID = 8
	// pastFields is the number of words that encodePast writes.
	pastFields = 5
	// sharedWords is the number of words about the present of a slot with two holders.
	sharedWords = 12
)

// Validate checks that the holder can be recorded; PodUID and Interface are required.
// It fails with ErrBadHolder.
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

// encode returns "uid ns/pod/if node", with "-" for an empty name.
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
//	<ordinal> A <generation> <since> <uid> <namespace>/<pod>/<interface> <node> [<claim>] <past>
//	<ordinal> M <generation> <since> <uid> <namespace>/<pod>/<interface> <node> <claim> <uid> <namespace>/<pod>/<interface> <node> <joined> <past>
//	<ordinal> F <generation> <since> [<uid> <namespace>/<pod>/<interface> <node> <taken since>] <past>
//	<ordinal> H <generation> <since> <claim> <past>
//
// with times in milliseconds of Unix time and "-" for an empty name. The first brackets
// are present if the slot has a claim, the second if it had a holder. M is a taken slot
// with a second holder, which joined the first at <joined>. <past> are earlier holdings, the newest first, each as
//
//	<uid> <namespace>/<pod>/<interface> <node> <since> <until>
func (s *slot) encode(ordinal int) string {
	b := make([]byte, 0, 128)
	b = strconv.AppendInt(b, int64(ordinal), 10)
	b = append(b, ' ', s.letter(), ' ')
	b = strconv.AppendUint(b, s.gen, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, s.at, 10)
	switch s.state {
	case Taken:
		b = append(b, ' ')
		b = append(b, s.holder.encode()...)
		if s.claim != "" {
			b = append(b, ' ')
			b = append(b, s.claim...)
		}
		if s.second != (Holder{}) {
			b = append(b, ' ')
			b = append(b, s.second.encode()...)
			b = append(b, ' ')
			b = strconv.AppendInt(b, s.joined, 10)
		}
	case Freed:
		if s.holder != (Holder{}) {
			b = append(b, ' ')
			b = append(b, s.holder.encode()...)
			b = append(b, ' ')
			b = strconv.AppendInt(b, s.since, 10)
		}
	case Held:
		b = append(b, ' ')
		b = append(b, s.claim...)
	default:
	}
	if s.past != "" {
		b = append(b, ' ')
		b = append(b, s.past...)
	}
	return string(b)
}

// letter returns the letter of the slot's record.
func (s *slot) letter() byte {
	if s.second != (Holder{}) {
		return sharedLetter
	}
	return byte(s.state)
}

// decodeSlot reads a slot that encode has written. It refuses any string that encode
// would write differently, so that rewriting a block loses nothing. The ordinal is -1
// if it is unreadable too.
func decodeSlot(text string) (ordinal int, s slot, ok bool) {
	f := strings.Split(text, " ")
	ordinal = decodeOrdinal(f[0])
	if ordinal < 0 || len(text) > maxSlotLength || len(f) < 4 || len(f[1]) != 1 {
		return ordinal, slot{}, false
	}
	s.state = State(f[1][0])
	gen, err := strconv.ParseUint(f[2], 10, 64)
	at, atOK := decodeTime(f[3])
	if err != nil || !atOK || gen < 1 || gen > maxGeneration {
		return ordinal, slot{}, false
	}
	s.gen, s.at = gen, at
	head := s.state.words(len(f))
	switch {
	case head == 7:
		s.holder, ok = decodeHolder(f[4], f[5], f[6])
	case head == 8 && s.state == Taken:
		s.holder, ok = decodeHolder(f[4], f[5], f[6])
		s.claim = f[7]
		ok = ok && ValidClaim(s.claim)
	case head == 4:
		ok = true
	case head == 8:
		var sinceOK bool
		s.holder, ok = decodeHolder(f[4], f[5], f[6])
		s.since, sinceOK = decodeTime(f[7])
		ok = ok && sinceOK
	case head == 5:
		s.claim, ok = f[4], ValidClaim(f[4])
	case head == sharedWords:
		ok = s.decodeShared(f)
	}
	if ok && head < len(f) {
		s.past, ok = strings.Join(f[head:], " "), validPast(f[head:])
	}
	if !ok || s.encode(ordinal) != text {
		return ordinal, slot{}, false
	}
	return ordinal, s, true
}

// decodeShared decodes the words of a slot with two holders.
func (s *slot) decodeShared(f []string) bool {
	var first, second, joined bool
	s.state, s.claim = Taken, f[7]
	s.holder, first = decodeHolder(f[4], f[5], f[6])
	s.second, second = decodeHolder(f[8], f[9], f[10])
	s.joined, joined = decodeTime(f[11])
	return first && second && joined && ValidClaim(s.claim) && !s.holder.Same(s.second)
}

// words returns how many of a record's words describe the present, in this state and
// with this total; 0 if no record has that many.
func (s State) words(all int) int {
	switch more := all % pastFields; {
	case s == Taken && more == 7%pastFields:
		return 7
	case s == Taken && more == 8%pastFields:
		return 8
	case s == Freed && more == 4%pastFields:
		return 4
	case s == Freed && more == 8%pastFields:
		return 8
	case s == Held && more == 5%pastFields:
		return 5
	case byte(s) == sharedLetter && more == sharedWords%pastFields && all >= sharedWords:
		return sharedWords
	}
	return 0
}

// ClaimOf returns the claim of an encoded slot; empty for none.
func ClaimOf(text string) string {
	_, s, ok := decodeSlot(text)
	if !ok {
		return ""
	}
	return s.claim
}

func decodeTime(text string) (ms int64, ok bool) {
	ms, err := strconv.ParseInt(text, 10, 64)
	return ms, err == nil && ms >= 0 && ms <= maxTime
}

func decodeOrdinal(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= slotsPerBlock || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

// ValidClaim reports whether a key of a claim can be recorded.
func ValidClaim(key string) bool {
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

// ceilMillis rounds up: a freed address must not cool down for too short a time.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return min(max(ms, 1), maxTime)
}
