package ipam

import "time"

// Moment is a point in time by the two clocks of a process.
type Moment struct {
	// Wall is what the process's wall clock shows. It is written down, for people
	// and for the process that comes next. It may be wrong, and it may jump.
	Wall time.Time
	// Run is how long the process has run, by a clock that never jumps. A block
	// that is watched measures by it alone.
	Run time.Duration
}

// Add returns the moment that is d later by both clocks.
func (m Moment) Add(d time.Duration) Moment { return Moment{m.Wall.Add(d), m.Run + d} }

// sight is what a process has seen of a block, in milliseconds of Moment.Run.
type sight struct {
	// on is false for a block that is only looked at: it measures by the wall clock.
	on bool
	// first is when the process first heard of the block.
	first int64
	// seen is for a freed slot from when it rests, and for a held one from when it
	// is held. It is below zero for what was so before the process began.
	seen [slotsPerBlock]int64
}

// Watch makes the block measure by the process's own clock. before is what the
// process knew of the block until now, a watched block; nil when it knew nothing.
//
// A slot that became free or held under the eyes of the process is so since then,
// whatever is written down. Of one that was free when the process first heard of
// the block the recorded time counts as far as it lies in the past, but no address
// is handed out before the process has known the block for MinCooldown. Of one
// that was held then it does not count.
func (b *Block) Watch(before *Block, now Moment) {
	run := ceilRun(now.Run)
	b.sight = sight{on: true, first: run}
	if before != nil {
		b.first = before.first
	}
	for ord := range b.slots {
		s := &b.slots[ord]
		switch {
		case s.state != Freed && s.state != Held:
		case before != nil && before.slots[ord] == *s:
			b.seen[ord] = before.seen[ord]
		case before == nil && s.state == Freed:
			b.seen[ord] = run - min(max(now.Wall.UnixMilli()-s.at, 0), MaxCooldown.Milliseconds())
		default:
			b.seen[ord] = run
		}
	}
}

// Since returns from when the process has seen an address be free or held, as
// Moment.Run; 0 for any other, and in a block that is not watched.
func (b *Block) Since(ordinal int) time.Duration {
	return time.Duration(b.seen[ordinal]) * time.Millisecond
}

// IdleFrom returns from when the process sees the block idle, as Moment.Run, which
// may lie ahead; false while something is taken, held, withheld or damaged.
func (b *Block) IdleFrom(rest time.Duration) (time.Duration, bool) {
	if !b.on || b.Used() > 0 || b.withheld != 0 {
		return 0, false
	}
	from := b.first
	for ord := range b.slots {
		if b.slots[ord].state == Freed {
			from = max(from, b.first+MinCooldown.Milliseconds(), b.seen[ord]+rest.Milliseconds())
		}
	}
	return time.Duration(from) * time.Millisecond, true
}

// ceilRun rounds up: a freed address must not rest too short.
func ceilRun(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
