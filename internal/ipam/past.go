package ipam

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// History returns the ended holdings of an address that the block still records, the
// newest first.
func (b *Block) History(a netip.Addr) []Past {
	ord, ok := b.ordinal(a)
	if !ok {
		return nil
	}
	var out []Past
	s := &b.slots[ord]
	if s.state == Freed && s.holder != (Holder{}) {
		out = append(out, Past{Holder: s.holder, Since: time.UnixMilli(s.since), Until: time.UnixMilli(s.at)})
	}
	for f := s.pastWords(); len(f) > 0; f = f[pastFields:] {
		past, _ := decodePast(f[:pastFields])
		out = append(out, past)
	}
	return out
}

func (s *slot) pastWords() []string {
	if s.past == "" {
		return nil
	}
	return strings.Split(s.past, " ")
}

// pastWith returns the past of a slot that h, one of its holders, has just lost.
func (s *slot) pastWith(h Holder, since, until int64) string {
	h.PodUID = h.PodUID[:min(pastUID, len(h.PodUID))]
	if s.past == "" {
		return encodePast(h, since, until)
	}
	return encodePast(h, since, until) + " " + s.past
}

// trim drops the oldest holdings until at most maxHoldings are left and the slot's
// string is short enough.
func (s *slot) trim() {
	f := s.pastWords()
	keep := maxHoldings * pastFields
	for _, h := range []Holder{s.holder, s.second} {
		if h != (Holder{}) {
			keep -= pastFields
		}
	}
	f = f[:min(keep, len(f))]
	// Bytes of the other words: the ordinal, the state, a generation of at most 19
	// digits, two times of 15, and the blanks.
	const other = 64
	h := &s.holder
	room := maxSlotLength - other - s.secondLength() - len(h.PodUID) - len(h.Namespace) - len(h.Pod) - len(h.Interface) - len(h.Node) - len(s.claim)
	s.past = strings.Join(f, " ")
	for len(s.past) > max(room, 0) {
		f = f[:len(f)-pastFields]
		s.past = strings.Join(f, " ")
	}
}

// secondLength returns how many bytes the second holder adds to the slot's string.
func (s *slot) secondLength() int {
	if s.second == (Holder{}) {
		return 0
	}
	return len(s.second.encode()) + len(" ") + len(" 299999999999999")
}

func encodePast(h Holder, since, until int64) string {
	return h.encode() + " " + strconv.FormatInt(since, 10) + " " + strconv.FormatInt(until, 10)
}

// decodePast reads the words that encodePast writes, and refuses all others.
func decodePast(f []string) (Past, bool) {
	h, holderOK := decodeHolder(f[0], f[1], f[2])
	since, sinceOK := decodeTime(f[3])
	until, untilOK := decodeTime(f[4])
	ok := holderOK && sinceOK && untilOK && encodePast(h, since, until) == strings.Join(f, " ")
	return Past{Holder: h, Since: time.UnixMilli(since), Until: time.UnixMilli(until)}, ok
}

func validPast(f []string) bool {
	for ; len(f) > 0; f = f[pastFields:] {
		if _, ok := decodePast(f[:pastFields]); !ok {
			return false
		}
	}
	return true
}
