package ipam

import "time"

// Moment is a point in time on the two clocks of a process.
type Moment struct {
	// Wall is the wall clock. It is recorded for people and for later processes. It may
	// be wrong, and it may jump.
	Wall time.Time
	// Run is how long the process has run, by a clock that never jumps. A watched block
	// measures time by Run alone.
	Run time.Duration
}

// Add returns the moment that is d later on both clocks.
func (m Moment) Add(d time.Duration) Moment { return Moment{m.Wall.Add(d), m.Run + d} }

// observed is when a process saw the changes of a block, in milliseconds of Moment.Run.
type observed struct {
	// watched is false for a block without Watch, which is only inspected: it uses the
	// wall clock.
	watched bool
	// firstSeen is when the process first saw the block.
	firstSeen int64
	// changedAt is when a slot became free or held. It is below zero if that was before
	// the process began.
	changedAt [slotsPerBlock]int64
}

// Watch makes the block measure time by the process's own clock. before is the watched
// block that the process knew until now; nil if it knew none.
//
// If the process has seen a slot become free or held, the slot counts as such since
// then, whatever time is recorded. If a slot was free when the process first saw the
// block, the recorded time counts, unless it lies in the future; but no freed address
// is handed out before the process has known the block for MinCooldown. If a slot was
// held then, it counts as held since that moment.
func (b *Block) Watch(before *Block, now Moment) {
	run := ceilRun(now.Run)
	b.observed = observed{watched: true, firstSeen: run}
	if before != nil {
		b.firstSeen = before.firstSeen
	}
	for ord := range b.slots {
		s := &b.slots[ord]
		switch {
		case s.state != Freed && s.state != Held:
		case before != nil && before.slots[ord] == *s:
			b.changedAt[ord] = before.changedAt[ord]
		case before == nil && s.state == Freed:
			b.changedAt[ord] = run - min(max(now.Wall.UnixMilli()-s.at, 0), MaxCooldown.Milliseconds())
		default:
			b.changedAt[ord] = run
		}
	}
}

// Since returns when the process saw an address become free or held, as Moment.Run. It
// returns 0 for any other address, and in a block that is not watched.
func (b *Block) Since(ordinal int) time.Duration {
	return time.Duration(b.changedAt[ordinal]) * time.Millisecond
}

// IdleFrom returns from when on the block is idle, as Moment.Run, which may be in the
// future. It returns false if an address is taken, held or damaged, and for a
// block that is not watched.
func (b *Block) IdleFrom(rest time.Duration) (time.Duration, bool) {
	if !b.watched || b.Used() > 0 {
		return 0, false
	}
	from := b.firstSeen
	for ord := range b.slots {
		if b.slots[ord].state == Freed {
			from = max(from, b.firstSeen+MinCooldown.Milliseconds(), b.changedAt[ord]+rest.Milliseconds())
		}
	}
	return time.Duration(from) * time.Millisecond, true
}

// ceilRun rounds up: a freed address must not cool down for too short a time.
func ceilRun(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
