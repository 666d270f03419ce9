package sim

import (
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// This file has the clocks of the world. Its own, world.now, is the true one. The wall
// clock of each leader, of each machine and of the API server is wrong by as much as it
// likes, and jumps; how long a process has run each knows truly.

// lie is by how much a wall clock is wrong. It is no multiple of the clock's step, so that
// a clock that jumped does not show a time twice.
func (w *world) lie() time.Duration {
	const year = 365 * 24 * time.Hour
	by := []time.Duration{0, 0, time.Minute, -time.Minute, time.Hour, -time.Hour, year, -year}[w.rng.IntN(8)]
	return by + time.Duration(1+w.rng.IntN(int(quantum/time.Millisecond)-1))*time.Millisecond
}

// clock is a leader's wall clock. It does not move while goroutines run, so that nothing
// depends on who of them is first.
func (l *leader) clock() time.Time {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	t := l.w.now.Add(l.wrong)
	l.stamps[t.UnixMilli()] = l.w.now
	return t
}

// run is how long a leader has run; where clocks are broken on purpose it jumps.
func (l *leader) run() time.Duration {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	d := l.w.now.Sub(l.began)
	switch l.w.cfg.Break {
	case NoCooldown:
		// Between every two looks of the store an hour seems to pass.
		return d + time.Duration(l.w.looks.Add(1))*time.Hour
	case RunByWallAhead, RunByWallBehind:
		return d + l.wrong
	default:
		return d
	}
}

// jump sets a leader's wall clock.
func (w *world) jump(l *leader) {
	by := w.lie()
	switch w.cfg.Break {
	case RunByWallAhead:
		by = max(l.wrong, 0) + time.Hour
	case RunByWallBehind:
		by = min(l.wrong, 0) - time.Hour
	default:
	}
	w.note("the clock of leader %d is now wrong by %s", l.id, by)
	w.stats.Jumps++
	w.mu.Lock()
	l.wrong = by
	w.mu.Unlock()
}

// jumpAPI sets the API server's clock, while all that it has stamped lives on.
func (w *world) jumpAPI() {
	by := w.lie()
	if w.cfg.Break == NodesByStamps {
		by = w.apiWrong - time.Hour - time.Duration(w.rng.IntN(int(quantum)))
	}
	w.note("the API server's clock is now wrong by %s", by)
	w.stats.Jumps++
	w.apiWrong = by
}

// clock is a machine's wall clock, by which its kubelet and its daemon stamp.
func (m *machine) clock() time.Time { return m.w.now.Add(m.wrong) }

// jump sets a machine's wall clock.
func (m *machine) jump() {
	m.wrong = m.w.lie()
	m.w.note("the clock of %s is now wrong by %s", m.name, m.wrong)
	m.w.stats.Jumps++
}

// stamp is a time that is written in a slot.
type stamp struct {
	addr       netip.Addr
	generation uint64
	at         int64
}

func stampOf(s ipam.Slot) stamp { return stamp{s.Addr, s.Generation, s.Since.UnixMilli()} }

// stamped notes when a slot was truly what it is now, whatever its writer's clock says.
func (w *world) stamped(s ipam.Slot) {
	k := stampOf(s)
	if _, ok := w.stamps[k]; ok || s.State == 0 {
		return
	}
	w.stamps[k] = w.now
	if w.doing == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.doing.by.stamps[k.at]; ok {
		w.stamps[k] = t
	}
}

// since is since when a slot has truly been what it is.
func (w *world) since(s ipam.Slot) time.Time { return w.stamps[stampOf(s)] }

// sighting is when a leader first saw a slot be free, as it is now.
type sighting struct {
	slot ipam.Slot
	at   time.Time
}

// sight notes what an informer shows a leader of freed slots. Of a block that is new to
// it, as one that was deleted by hand and put back, all are.
func (l *leader) sight(old client.Object, b *v1alpha1.IPBlock) {
	known := old != nil && old.GetUID() == b.UID
	for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
		if s.State == ipam.Freed && (!known || l.sighted[s.Addr].slot != s) {
			l.sighted[s.Addr] = sighting{s, l.w.now}
		}
	}
}

// checkCooling sees that nothing cools down for longer than it may: a slot rests for the
// cooldown from when the leader saw it free at the latest. It is for leaders that have
// seen all that there is of blocks.
func (w *world) checkCooling() {
	most := longest(w.pools.all) + quantum
	for _, l := range w.leaders {
		if l.behind(kindBlock) > 0 {
			continue
		}
		known := map[netip.Addr]bool{}
		for a, saw := range l.sighted {
			known[a] = w.now.Sub(saw.at) <= most
		}
		for a, s := range w.slots {
			known[a] = known[a] || s.State != ipam.Freed || l.sighted[a].slot != s ||
				l.sighted[a].at.Before(w.became[a]) // it was something else meanwhile, and somebody put it back
		}
		for _, p := range w.pools.all {
			var may uint64
			for a, ok := range known {
				if ok && p.Covers(a) {
					may++
				}
			}
			if c := l.counts(p); c.Cooling > may {
				w.fail("the cooldown's end", "leader %d counts %s in pool %s, and only %d addresses can have been free for less than %s", l.id, c, p.Name(), may, most)
			}
		}
	}
}

// longest is the longest cooldown.
func longest(pools []*ipam.Pool) time.Duration {
	var out time.Duration
	for _, p := range pools {
		out = max(out, p.Cooldown())
	}
	return out
}
