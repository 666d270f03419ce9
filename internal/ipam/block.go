package ipam

import (
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"time"
)

// Block is 64 neighbouring addresses of a domain with their records. It is not safe for
// concurrent use.
type Block struct {
	prefix netip.Prefix
	node   string
	slots  [slotsPerBlock]slot
	// One bit per ordinal and state. A slot that was never used has no bit.
	taken, freed, held, damaged uint64
	// raw are the damaged records in the order of reading. They never change, so clones
	// share them.
	raw []rawSlot
	// noOrdinal counts the raw records with an unreadable ordinal.
	noOrdinal int
	observed
}

// rawSlot is a damaged record. ordinal is -1 if it is unreadable.
type rawSlot struct {
	ordinal int
	text    string
}

// NewBlock returns a block without records. prefix is a /26 or /122, as BlockOf returns
// it. node is empty for a shared block.
func NewBlock(prefix netip.Prefix, node string) *Block {
	return &Block{prefix: prefix, node: node}
}

// DecodeBlock reads the strings that Encode has written. An unreadable record is
// quarantined: Encode returns it unchanged, and its address is never handed out. If
// even its ordinal is unreadable, it may be the record of any address without a record,
// so all of those are withheld.
func DecodeBlock(prefix netip.Prefix, node string, slots []string) *Block {
	b := NewBlock(prefix, node)
	seen := [slotsPerBlock]string{}
	for _, text := range slots {
		ord, s, ok := decodeSlot(text)
		switch {
		case ord < 0:
			b.noOrdinal++
			b.raw = append(b.raw, rawSlot{ord, text})
		case seen[ord] != "":
			b.quarantine(ord, seen[ord])
			b.raw = append(b.raw, rawSlot{ord, text})
		case !ok:
			seen[ord] = text
			b.set(ord, slot{state: Damaged})
			b.raw = append(b.raw, rawSlot{ord, text})
		default:
			seen[ord] = text
			b.set(ord, s)
		}
	}
	return b
}

// quarantine turns a readable slot into a damaged one.
func (b *Block) quarantine(ord int, text string) {
	if b.slots[ord].state != Damaged {
		b.raw = append(b.raw, rawSlot{ord, text})
		b.set(ord, slot{state: Damaged})
	}
}

// Encode returns one string per slot that is or was in use, by ordinal, and every
// damaged record unchanged.
func (b *Block) Encode() []string {
	out := make([]string, 0, b.records())
	for ord := range b.slots {
		switch b.slots[ord].state {
		case unused:
		case Damaged:
			out = b.appendRaw(out, ord)
		default:
			out = append(out, b.slots[ord].encode(ord))
		}
	}
	return b.appendRaw(out, -1)
}

func (b *Block) appendRaw(out []string, ord int) []string {
	for _, r := range b.raw {
		if r.ordinal == ord {
			out = append(out, r.text)
		}
	}
	return out
}

// records returns the number of strings that Encode returns.
func (b *Block) records() int {
	return bits.OnesCount64(b.taken|b.freed|b.held) + len(b.raw)
}

// Clone returns an independent copy.
func (b *Block) Clone() *Block {
	c := *b
	return &c
}

// Prefix returns the prefix of the block.
func (b *Block) Prefix() netip.Prefix { return b.prefix }

// Node returns the node that the block is routed to; empty for a shared block.
func (b *Block) Node() string { return b.node }

// Used returns the number of records of taken, held and damaged addresses.
func (b *Block) Used() int { return bits.OnesCount64(b.taken|b.held) + len(b.raw) }

// Idle reports whether the block has no information worth keeping: no address is taken,
// held or damaged, and every freed address has cooled down for rest.
func (b *Block) Idle(now Moment, rest time.Duration) bool {
	return b.Used() == 0 && b.freed&^b.rested(now, rest) == 0
}

func (b *Block) set(ord int, s slot) {
	bit := uint64(1) << ord
	b.taken, b.freed, b.held, b.damaged = b.taken&^bit, b.freed&^bit, b.held&^bit, b.damaged&^bit
	switch s.state {
	case Taken:
		b.taken |= bit
	case Freed:
		b.freed |= bit
	case Held:
		b.held |= bit
	case Damaged:
		b.damaged |= bit
	case unused:
	}
	b.slots[ord] = s
}

// change sets a slot and increments its generation.
func (b *Block) change(ord int, s slot) {
	s.gen = b.slots[ord].gen + 1
	s.trim()
	b.set(ord, s)
}

func (b *Block) addr(ord int) netip.Addr {
	a := b.prefix.Addr()
	return numOf(a).add(num{lo: uint64(ord)}).addr(FamilyOf(a))
}

func (b *Block) ordinal(a netip.Addr) (int, bool) {
	if !b.prefix.Contains(a) {
		return 0, false
	}
	return int(numOf(a).sub(numOf(b.prefix.Addr())).lo), true
}

// rested has a bit for each freed slot whose address has cooled down.
func (b *Block) rested(now Moment, rest time.Duration) uint64 {
	var m uint64
	// Times of frees are rounded up, and the present is rounded down.
	ms, need := now.Wall.UnixMilli(), rest.Milliseconds()
	if b.watched {
		ms = now.Run.Milliseconds()
		if ms-b.firstSeen < MinCooldown.Milliseconds() {
			return 0
		}
	}
	for left := b.freed; left != 0; left &= left - 1 {
		ord := bits.TrailingZeros64(left)
		if ms-b.freedAt(ord) >= need {
			m |= 1 << ord
		}
	}
	return m
}

// freedAt returns when a slot was freed, by the clock that the block uses.
func (b *Block) freedAt(ord int) int64 {
	if b.watched {
		return b.changedAt[ord]
	}
	return b.slots[ord].at
}

// fresh has a bit for each slot of the mask that was never used and may be used now. It
// is 0 if a record has an unreadable ordinal, and has no more bits than the object has
// room for records.
func (b *Block) fresh(mask uint64) uint64 {
	if b.noOrdinal > 0 {
		return 0
	}
	m := mask &^ (b.taken | b.freed | b.held | b.damaged)
	for room := max(slotsPerBlock-b.records(), 0); bits.OnesCount64(m) > room; {
		m &^= 1 << (63 - bits.LeadingZeros64(m))
	}
	return m
}

// Eligible returns how many addresses the pool may take now. If early is set, a freed
// address counts after MinCooldown.
func (b *Block) Eligible(p *Pool, now Moment, early bool) int {
	if b.taken|b.held|b.damaged == ^uint64(0) {
		return 0
	}
	m := p.mask(b.prefix)
	return bits.OnesCount64(b.fresh(m) | m&b.rested(now, p.rest(early)))
}

func (p *Pool) rest(early bool) time.Duration {
	if early {
		return MinCooldown
	}
	return p.cooldown
}

// Take returns the holder's address in this block and in the ranges of the pool. If
// there is none, it takes the next address in the pool's order. If early is true, as for an
// exhausted pool, a freed address may be taken after MinCooldown.
//
// Errors: ErrFull, ErrBadHolder.
func (b *Block) Take(p *Pool, h Holder, early bool, now Moment) (netip.Addr, error) {
	if err := h.Validate(); err != nil {
		return netip.Addr{}, err
	}
	if a, ok := b.Own(p, h, ""); ok {
		return a, nil
	}
	m := p.mask(b.prefix)
	ord, ok := b.choose(p.order, b.fresh(m), m&b.rested(now, p.rest(early)))
	if !ok {
		return netip.Addr{}, ErrFull
	}
	b.give(ord, h, "", now)
	return b.addr(ord), nil
}

// Own returns the holder's address in this block and in the ranges of the pool. If the
// holder has several, it returns the lowest that has the claim, otherwise the lowest.
// claim is empty for none.
func (b *Block) Own(p *Pool, h Holder, claim string) (own netip.Addr, ok bool) {
	for a := range b.of(h) {
		if !p.Covers(a) {
			continue
		}
		if s, _ := b.Slot(a); s.Claim == claim {
			return a, true
		}
		if !ok {
			own, ok = a, true
		}
	}
	return own, ok
}

func (b *Block) choose(order Order, fresh, rested uint64) (int, bool) {
	if order == Lowest {
		fresh |= rested
	}
	if fresh != 0 {
		return bits.TrailingZeros64(fresh), true
	}
	best, found := 0, false
	for ; rested != 0; rested &= rested - 1 {
		ord := bits.TrailingZeros64(rested)
		if !found || b.freedAt(ord) < b.freedAt(best) {
			best, found = ord, true
		}
	}
	return best, found
}

// give makes h the holder of the slot, for a claim if claim is not empty.
func (b *Block) give(ord int, h Holder, claim string, now Moment) {
	was := &b.slots[ord]
	s := slot{state: Taken, at: ceilMillis(now.Wall), holder: h, claim: claim, past: was.past}
	if was.holder != (Holder{}) {
		s.past = was.pastWith(was.holder, was.since, was.at)
	}
	b.change(ord, s)
}

// TakeAddr takes a requested address. A freed address may be taken after MinCooldown,
// since no other address will do. For the holder of a claim the address may also be held for
// the claim, and then needs no cooldown.
//
// Errors: *TakenError with the holder or the reason, ErrNotAllowed, ErrBadHolder.
func (b *Block) TakeAddr(p *Pool, h Holder, a netip.Addr, claim string, now Moment) error {
	if err := h.Validate(); err != nil {
		return err
	}
	ord, ok := b.ordinal(a)
	if !ok {
		return fmt.Errorf("%w: %s is not in block %s", ErrNotAllowed, a, b.prefix)
	}
	s, bit := &b.slots[ord], uint64(1)<<ord
	switch {
	case s.has(h):
		return nil
	case !p.Allows(a):
		return fmt.Errorf("%w: %s is outside the ranges of pool %s, excluded, reserved, a gateway or an edge", ErrNotAllowed, a, p.name)
	case s.state == Taken:
		return &TakenError{Addr: a, Asker: h, Holder: s.holder}
	case s.state == Held && s.claim == claim:
		b.give(ord, h, claim, now)
		return nil
	case s.state == Held:
		return &TakenError{Addr: a, Asker: h, Claim: s.claim}
	case s.state == Freed && b.rested(now, MinCooldown)&bit == 0:
		return &TakenError{Addr: a, Reason: fmt.Sprintf("was released less than %s ago", MinCooldown)}
	case s.state == Freed || b.fresh(bit) != 0:
		b.give(ord, h, "", now)
		return nil
	default:
		return &TakenError{Addr: a, Reason: "is withheld: a record of block " + b.prefix.String() + " cannot be read"}
	}
}

// Keep sets the claim of an address that the holder has: Free then holds the address
// for the claim. It does nothing if the address has a claim already. It fails with
// ErrBadClaim.
func (b *Block) Keep(h Holder, a netip.Addr, claim string) error {
	if !ValidClaim(claim) {
		return fmt.Errorf("%w: %q: a key has 1 to %d printable characters, none of them a blank", ErrBadClaim, claim, maxClaim)
	}
	ord, ok := b.ordinal(a)
	if !ok {
		return nil
	}
	s := b.slots[ord]
	if s.state == Taken && s.holder.Same(h) && s.claim == "" {
		s.claim = claim
		b.change(ord, s)
	}
	return nil
}

// Unhold stops holding an address for a claim, and the address cools down. since is
// when the holding began. Unhold returns false and changes nothing if the address is
// not held for this claim since then, for instance because a pod has had it meanwhile.
func (b *Block) Unhold(claim string, a netip.Addr, since time.Time, now Moment) bool {
	ord, ok := b.ordinal(a)
	if !ok || b.slots[ord].state != Held || b.slots[ord].claim != claim || !b.slot(ord).Since.Equal(since) {
		return false
	}
	b.change(ord, slot{state: Freed, at: ceilMillis(now.Wall), past: b.slots[ord].past})
	b.changedAt[ord] = ceilRun(now.Run)
	return true
}

// Free gives an address of the holder back. If it has another holder, that one keeps it.
// Otherwise, if the address has a claim it is held for the claim, and if it has none it
// cools down. Free returns false and changes nothing if the
// holder does not have the address.
func (b *Block) Free(h Holder, a netip.Addr, now Moment) bool {
	ord, ok := b.ordinal(a)
	if !ok || !b.slots[ord].has(h) {
		return false
	}
	was := &b.slots[ord]
	if was.second != (Holder{}) {
		b.change(ord, was.without(h, ceilMillis(now.Wall)))
		return true
	}
	s := slot{state: Freed, at: ceilMillis(now.Wall), holder: was.holder, since: was.at, past: was.past}
	if was.claim != "" {
		s = slot{state: Held, at: s.at, claim: was.claim, past: was.pastWith(was.holder, was.at, s.at)}
	}
	b.change(ord, s)
	b.changedAt[ord] = ceilRun(now.Run)
	return true
}

// of yields the holder's addresses in the block, the lowest first.
func (b *Block) of(h Holder) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for left := b.taken; left != 0; left &= left - 1 {
			ord := bits.TrailingZeros64(left)
			if b.slots[ord].has(h) && !yield(b.addr(ord)) {
				return
			}
		}
	}
}

// Find returns the holder's lowest address in the block.
func (b *Block) Find(h Holder) (netip.Addr, bool) {
	for a := range b.of(h) {
		return a, true
	}
	return netip.Addr{}, false
}

// Slot returns the record of an address, if there is one.
func (b *Block) Slot(a netip.Addr) (Slot, bool) {
	ord, ok := b.ordinal(a)
	if !ok || b.slots[ord].state == unused {
		return Slot{}, false
	}
	return b.slot(ord), true
}

func (b *Block) slot(ord int) Slot {
	s := &b.slots[ord]
	out := Slot{Ordinal: ord, Addr: b.addr(ord), State: s.state, Generation: s.gen, Claim: s.claim}
	if s.at > 0 {
		out.Since = time.UnixMilli(s.at)
	}
	if s.state == Taken {
		out.Holder = s.holder
	}
	if s.second != (Holder{}) {
		out.Second, out.Joined = s.second, time.UnixMilli(s.joined)
	}
	return out
}

// Slots yields the records of the block by ordinal. Addresses that were never used have
// none.
func (b *Block) Slots() iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for ord := range b.slots {
			if b.slots[ord].state != unused && !yield(b.slot(ord)) {
				return
			}
		}
	}
}

// Counts returns the counts of those addresses of the block that belong to the pool.
func (b *Block) Counts(p *Pool, now Moment) Counts {
	all, m := p.usableMask(b.prefix), p.mask(b.prefix)
	count := func(mask uint64) uint64 { return uint64(bits.OnesCount64(mask)) }
	never := m &^ (b.taken | b.freed | b.held | b.damaged)
	fresh, rested := b.fresh(m), b.rested(now, p.cooldown)
	return Counts{
		Usable:    count(all),
		Free:      count(m & (fresh | rested)),
		Allocated: count(all & b.taken),
		Cooling:   count(m & (b.freed &^ rested)),
		Held:      count(m & b.held),
		Reserved:  count(m&(b.damaged|never&^fresh) | all&^m&^b.taken),
	}
}
