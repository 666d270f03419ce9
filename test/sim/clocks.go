package sim

import (
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// This file has the simulated clocks. simulation.now is the true time. The wall clock of
// each leader, of each machine and of the API server is wrong by any amount, and jumps.
// Each process knows truly how long it has run.

// randomClockError returns the error of a wall clock. It is no multiple of the clock's
// step, so that a clock that jumped does not show a time twice.
func (w *simulation) randomClockError() time.Duration {
	const year = 365 * 24 * time.Hour
	by := []time.Duration{0, 0, time.Minute, -time.Minute, time.Hour, -time.Hour, year, -year}[w.rng.IntN(8)]
	return by + time.Duration(1+w.rng.IntN(int(quantum/time.Millisecond)-1))*time.Millisecond
}

// clock returns a leader's wall clock. It does not move while goroutines run, so that
// nothing depends on their order.
func (l *leader) clock() time.Time {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	t := l.w.now.Add(l.wrong)
	l.stamps[t.UnixMilli()] = l.w.now
	return t
}

// run returns how long a leader has run; it jumps if clocks are broken on purpose.
func (l *leader) run() time.Duration {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	d := l.w.now.Sub(l.began)
	switch l.w.cfg.Break {
	case NoCooldown:
		// An hour seems to pass between any two reads of the clock by the store.
		return d + time.Duration(l.w.looks.Add(1))*time.Hour
	case RunByWallAhead, RunByWallBehind:
		return d + l.wrong
	default:
		return d
	}
}

// jump sets a leader's wall clock.
func (w *simulation) jump(l *leader) {
	by := w.randomClockError()
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

// jumpAPI sets the API server's clock; the timestamps of existing objects stay.
func (w *simulation) jumpAPI() {
	by := w.randomClockError()
	if w.cfg.Break == NodesByAge {
		by = w.apiClockError - time.Hour - time.Duration(w.rng.IntN(int(quantum)))
	}
	w.note("the API server's clock is now wrong by %s", by)
	w.stats.Jumps++
	w.apiClockError = by
}

// clock returns a machine's wall clock, which its kubelet and its daemon use for
// timestamps.
func (m *machine) clock() time.Time { return m.w.now.Add(m.wrong) }

// jump sets a machine's wall clock.
func (m *machine) jump() {
	m.wrong = m.w.randomClockError()
	m.w.note("the clock of %s is now wrong by %s", m.name, m.wrong)
	m.w.stats.Jumps++
}

// stamp identifies a timestamp that is written in a slot.
type stamp struct {
	addr       netip.Addr
	generation uint64
	at         int64
}

func stampOf(s ipam.Slot) stamp { return stamp{s.Addr, s.Generation, s.Since.UnixMilli()} }

// stamped notes the true time at which a slot got its state, whatever its writer's clock.
func (w *simulation) stamped(s ipam.Slot) {
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

// since returns the true time since which a slot has its state.
func (w *simulation) since(s ipam.Slot) time.Time { return w.stamps[stampOf(s)] }

// freedSeen is the time at which a leader first saw a slot free in its present state.
type freedSeen struct {
	slot ipam.Slot
	at   time.Time
}

// noteFreed notes the freed slots that an informer shows a leader. In a block that is new
// to the leader, such as a block that was deleted by hand and put back, all freed slots
// count as new.
func (l *leader) noteFreed(old client.Object, b *v1alpha1.IPBlock) {
	known := old != nil && old.GetUID() == b.UID
	for s := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
		if s.State == ipam.Freed && (!known || l.freedSeenAt[s.Addr].slot != s) {
			l.freedSeenAt[s.Addr] = freedSeen{s, l.w.now}
		}
	}
}

// checkCooling checks that no address cools down for too long: a slot rests for the
// cooldown, at the latest from when the leader saw it free. It checks only leaders that
// have seen all changes of blocks.
func (w *simulation) checkCooling() {
	most := longest(w.pools.all) + quantum
	for _, l := range w.leaders {
		if l.behind(kindBlock) > 0 {
			continue
		}
		known := map[netip.Addr]bool{}
		for a, saw := range l.freedSeenAt {
			known[a] = w.now.Sub(saw.at) <= most
		}
		for a, s := range w.slots {
			known[a] = known[a] || s.State != ipam.Freed || l.freedSeenAt[a].slot != s ||
				l.freedSeenAt[a].at.Before(w.became[a]) // it changed meanwhile, and was put back by hand
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

// longest returns the longest cooldown of the pools.
func longest(pools []*ipam.Pool) time.Duration {
	var out time.Duration
	for _, p := range pools {
		out = max(out, p.Cooldown())
	}
	return out
}
