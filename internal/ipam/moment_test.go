package ipam

import (
	"errors"
	"testing"
	"time"
)

// A process measures by its own clock. The wall clocks of earlier writers and jumps of
// its own wall clock do not matter.
func TestWatchedBlockRests(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.7"}, Cooldown: 30 * time.Second})
	const year = 365 * 24 * time.Hour
	run := func(d time.Duration) Moment { return Moment{Wall: t0().Wall.Add(d), Run: time.Hour + d} }
	written := func(freed time.Duration) *Block {
		b := newBlock("10.0.0.0/26")
		if err := b.TakeAddr(p, holder(1), addr("10.0.0.7"), "", t0()); err != nil {
			t.Fatal(err)
		}
		b.Free(holder(1), addr("10.0.0.7"), Moment{Wall: t0().Wall.Add(freed)})
		return DecodeBlock(b.Prefix(), "", b.Encode())
	}
	for _, tt := range []struct {
		name string
		// freed is the recorded time of the free, relative to the process's clock.
		freed time.Duration
		// known is true if the process knew the block before.
		known bool
		// jump is a jump of the process's wall clock after it first saw the block.
		jump time.Duration
		// want and early are when the address may be taken, after the pool's cooldown
		// and after the shortest.
		want, early time.Duration
	}{
		{"just now", 0, false, 0, 30 * time.Second, MinCooldown},
		{"a while ago", -20 * time.Second, false, 0, 10 * time.Second, MinCooldown},
		{"long ago", -time.Hour, false, 0, MinCooldown, MinCooldown},
		{"a year behind", -year, false, 0, MinCooldown, MinCooldown},
		{"a year ahead", year, false, 0, 30 * time.Second, MinCooldown},
		{"seen, a minute behind", -time.Minute, true, 0, 30 * time.Second, MinCooldown},
		{"seen, a year behind", -year, true, 0, 30 * time.Second, MinCooldown},
		{"seen, a year ahead", year, true, 0, 30 * time.Second, MinCooldown},
		{"the own clock jumps ahead", 0, false, year, 30 * time.Second, MinCooldown},
		{"the own clock jumps back", 0, false, -year, 30 * time.Second, MinCooldown},
		{"seen, and the own clock jumps ahead", 0, true, year, 30 * time.Second, MinCooldown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := written(tt.freed)
			var before *Block
			if tt.known {
				before = newBlock("10.0.0.0/26")
				before.Watch(nil, run(-time.Minute))
			}
			b.Watch(before, run(0))
			at := func(d time.Duration) Moment {
				m := run(d)
				m.Wall = m.Wall.Add(tt.jump)
				return m
			}
			const ms = time.Millisecond
			for early, want := range map[bool]time.Duration{false: tt.want, true: tt.early} {
				if tt.known && early { // the process has known the block for long, the slot has just changed
					want = MinCooldown
				}
				if n := b.Eligible(p, at(want-ms), early); n != 0 {
					t.Errorf("early %v: eligible before %v", early, want)
				}
				if n := b.Eligible(p, at(want+ms), early); n != 1 { // times are rounded up
					t.Errorf("early %v: not eligible after %v", early, want)
				}
			}
			if _, err := b.Clone().Take(p, holder(2), true, at(MinCooldown-ms)); !errors.Is(err, ErrFull) {
				t.Errorf("Take, early, under the floor: %v", err)
			}
			if err := b.Clone().TakeAddr(p, holder(2), addr("10.0.0.7"), "", at(MinCooldown-ms)); err == nil {
				t.Error("TakeAddr under the floor succeeds")
			}
			if c := b.Counts(p, at(tt.want-ms)); c.Cooling != 1 {
				t.Errorf("%v", c)
			}
		})
	}
}

// The time when a process saw a slot change stays while the slot is unchanged. It
// starts again with each change, also if an older state returns.
func TestWatchCarriesOver(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0-10.0.0.2"}, Cooldown: 30 * time.Second})
	at := func(s int) Moment { return t0().Add(time.Duration(s) * time.Second) }
	b := newBlock("10.0.0.0/26")
	b.Watch(nil, at(0))
	for i, a := range []string{"10.0.0.0", "10.0.0.1"} {
		if err := b.TakeAddr(p, holder(i), addr(a), "", at(0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.TakeAddr(p, holder(2), addr("10.0.0.2"), "", at(0)); err != nil {
		t.Fatal(err)
	}
	if err := b.Keep(holder(2), addr("10.0.0.2"), "ns/c"); err != nil {
		t.Fatal(err)
	}
	b.Free(holder(0), addr("10.0.0.0"), at(10))
	b.Free(holder(2), addr("10.0.0.2"), at(20))
	again := func(old *Block, s int) *Block {
		out := DecodeBlock(old.Prefix(), "", old.Encode())
		out.Watch(old, at(s))
		return out
	}
	seen := again(b, 100)
	if seen.Since(0) != 10*time.Second || seen.Since(2) != 20*time.Second || seen.Since(1) != 0 {
		t.Errorf("seen since %v, %v, %v", seen.Since(0), seen.Since(1), seen.Since(2))
	}
	older := seen.Clone()
	if err := seen.TakeAddr(p, holder(7), addr("10.0.0.0"), "", at(200)); err != nil {
		t.Fatal(err)
	}
	back := DecodeBlock(older.Prefix(), "", older.Encode())
	back.Watch(seen, at(300))
	if back.Since(0) != 300*time.Second || back.Since(2) != 20*time.Second {
		t.Errorf("an older state came back: seen since %v, %v", back.Since(0), back.Since(2))
	}
}

func TestIdleFrom(t *testing.T) {
	p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, UseEdges: true, Cooldown: 30 * time.Second})
	const rest = 30 * time.Second
	at := func(s int) Moment { return t0().Add(time.Duration(s) * time.Second) }
	b := newBlock("10.0.0.0/26")
	if _, ok := b.IdleFrom(rest); ok {
		t.Error("a block that is not watched tells from when it is idle")
	}
	b.Watch(nil, at(7))
	if from, ok := b.IdleFrom(rest); !ok || from != 7*time.Second {
		t.Errorf("never used: %v, %v", from, ok)
	}
	for i := range 2 {
		if err := b.TakeAddr(p, holder(i), b.addr(i), "", at(10)); err != nil {
			t.Fatal(err)
		}
	}
	b.Free(holder(0), b.addr(0), at(20))
	if _, ok := b.IdleFrom(rest); ok {
		t.Error("idle while an address is taken")
	}
	b.Free(holder(1), b.addr(1), at(21))
	if from, ok := b.IdleFrom(rest); !ok || from != 51*time.Second || b.Idle(at(50), rest) || !b.Idle(at(51), rest) {
		t.Errorf("idle from %v, %v, want 51s", from, ok)
	}
	// A process that has just started counts the block as known since then, whatever
	// times are recorded.
	fresh := DecodeBlock(b.Prefix(), "", b.Encode())
	fresh.Watch(nil, Moment{Wall: at(10_000).Wall, Run: 3 * time.Second})
	if from, ok := fresh.IdleFrom(rest); !ok || from != 3*time.Second+MinCooldown {
		t.Errorf("idle from %v, %v, want 8s", from, ok)
	}
}
