package pool

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// atLeast is the longest pause of the loop while there are pools: time alone shrinks an
	// idle pool, and frees that of a node that is gone.
	atLeast = time.Minute
	// Pauses between two tries of a call that fails, from the first, doubling up to the last.
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// step is a part of the work. It returns the time until it is due again.
type step struct {
	do   func(ctx context.Context) (pause time.Duration)
	due  time.Time
	busy bool
}

// Run fills and shrinks the pools until ctx ends. It runs in each term of a leader. One loop
// starts the steps whose time has come, and all when the bell rings. A step that waits for the
// cloud holds up no other, and is not started again before it ends.
func (p *Pools) Run(ctx context.Context) error {
	p.begin()
	steps := []*step{{do: p.compare}, {do: p.mark}, {do: p.refill}, {do: p.remove}}
	type end struct {
		of    *step
		pause time.Duration
	}
	ended := make(chan end, len(steps))
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		pause := atLeast
		for _, s := range steps {
			left := time.Until(s.due)
			if !s.busy && left <= 0 {
				s.busy, s.due = true, time.Now().Add(atLeast)
				running.Go(func() { ended <- end{s, s.do(ctx)} })
			}
			if !s.busy {
				pause = min(pause, left)
			}
		}
		select {
		case e := <-ended:
			e.of.busy = false
			if due := time.Now().Add(e.pause); due.Before(e.of.due) {
				e.of.due = due
			}
		case <-p.bell:
			for _, s := range steps {
				s.due = time.Time{}
			}
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// begin forgets what the process knew of an earlier term: another leader worked since.
func (p *Pools) begin() {
	p.records.begin()
	p.store.begin()
	p.strays.begin()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compared = false
	clear(p.retry)
	now := time.Now()
	for _, n := range p.needs {
		clear(n.waiting)
		n.last, n.gone, n.err, n.after, n.pause = now, time.Time{}, nil, time.Time{}, 0
	}
	p.bell.ring()
}

// Compared reports whether the PortPools are compared with the records of pods in this term.
func (p *Pools) Compared() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.compared
}

// level returns the state of a key in numbers. p.mu is held.
func (p *Pools) level(k Key, n *need, have group, now time.Time) level {
	p.store.served(n.waiting)
	in := have.count()
	return level{
		ready: in[ready], cooling: in[cooling] + in[stale], used: in[used],
		waiting: len(n.waiting), rate: n.meter.now(now), idle: now.Sub(n.last), desired: have.desired(k), closed: p.isClosed(n, now),
	}
}

// isClosed reports whether a pool gets no port any more: pools are off, or its network or its
// node goes. p.mu is held.
func (p *Pools) isClosed(n *need, now time.Time) bool {
	return p.cfg.Marks == Marks{} || n.closed || !n.gone.IsZero() && now.Sub(n.gone) >= p.cfg.Grace
}

// marking is the work on one PortPool: the slots that rested, and the number of ready ones to
// remove; or the network that its ports have to be of.
type marking struct {
	key     Key
	name    string
	rested  map[int32]bool
	remove  int
	network *v1alpha1.PortPoolNetwork
}

// mark is the step that changes states of slots without a call of the cloud.
func (p *Pools) mark(ctx context.Context) (pause time.Duration) {
	if !p.Compared() {
		return atLeast
	}
	p.lookAtNodes(ctx)
	p.records.forget(time.Now())
	all, empty, pause := p.markings(time.Now())
	for _, m := range all {
		err := p.store.do(ctx, m.key, m.name, func(s *v1alpha1.PortPoolSpec) bool {
			if m.network != nil {
				return leaveNetwork(s, *m.network)
			}
			return mark(s.Ports, m.rested, m.remove)
		})
		switch {
		case err != nil:
			pause = min(pause, firstPause)
		case len(m.rested) > 0:
			p.cfg.Wake() // a pod may wait for a port, and none can be made
		}
	}
	for _, name := range empty {
		p.store.drop(ctx, name)
	}
	return pause
}

// markings returns the work that is due, the PortPools to delete, and the time until more is
// due.
func (p *Pools) markings(now time.Time) (all []marking, empty []string, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = atLeast
	keys := p.store.keys()
	maps.DeleteFunc(p.needs, func(text string, _ *need) bool { _, known := keys[text]; return !known })
	for _, k := range keys {
		marked, unneeded, next := p.markingsOf(k, now)
		all, empty, pause = append(all, marked...), append(empty, unneeded...), min(pause, next)
	}
	return all, empty, pause
}

// markingsOf is markings for the PortPools of a key. p.mu is held.
func (p *Pools) markingsOf(k Key, now time.Time) (all []marking, empty []string, pause time.Duration) {
	pause = atLeast
	n, have := p.need(k), p.store.of(k)
	maps.DeleteFunc(n.waiting, func(_ identity, at time.Time) bool { return now.Sub(at) >= forgetWaiting })
	l := p.level(k, n, have, now)
	_, remove := p.cfg.Marks.plan(l)
	unneeded := l.used == 0 && l.waiting == 0 && (l.closed || l.idle >= forgetAfter && l.desired < 0)
	for _, e := range slices.Backward(have) {
		if e.object == nil {
			if l.idle >= forgetAfter && l.waiting == 0 {
				p.store.forget(e.name)
			}
			continue
		}
		if e.hasPortsBeside(n.network) {
			all = append(all, marking{key: k, name: e.name, network: n.network})
			continue
		}
		m, next := e.marking(remove, now)
		remove -= m.remove
		pause = min(pause, next)
		if len(m.rested) > 0 || m.remove > 0 {
			all = append(all, m)
		}
		// A stray is adopted by its PortPool: that stays until the cloud is read.
		if len(e.slots()) == 0 && unneeded && !p.strays.isDue() {
			empty = append(empty, e.name)
		}
	}
	return all, empty, pause
}

// hasPortsBeside reports whether a PortPool has ports without a pod on another network or
// machine than this one, which replaced theirs. The port of a pod comes back later.
func (e *entry) hasPortsBeside(network *v1alpha1.PortPoolNetwork) bool {
	was := e.resolved()
	return network != nil && was != nil && !sameNetwork(was, network) &&
		slices.ContainsFunc(e.slots(), func(s slot) bool { return s.State != used && s.State != leaving })
}

// marking returns the work on a PortPool, with at most remove ready slots to remove, and the
// time until more is due.
func (e *entry) marking(remove int, now time.Time) (m marking, next time.Duration) {
	m, next = marking{key: e.key, name: e.name, rested: map[int32]bool{}}, atLeast
	for _, s := range e.slots() {
		switch left := cooldown - now.Sub(e.cooling[s.Slot]); {
		case s.State == ready && m.remove < remove:
			m.remove++
		case s.State == cooling && left <= 0:
			m.rested[s.Slot] = true
		case s.State == cooling:
			next = min(next, left)
		}
	}
	return m, next
}

// mark makes rested slots ready, and the last remove ready ones leaving.
func mark(slots []slot, rested map[int32]bool, remove int) (changed bool) {
	for i := len(slots) - 1; i >= 0 && remove > 0; i-- {
		if slots[i].State == ready {
			slots[i].State = leaving
			remove--
			changed = true
		}
	}
	for i := range slots {
		if slots[i].State == cooling && rested[slots[i].Slot] {
			slots[i].State = ready
			changed = true
		}
	}
	return changed
}

// lookAtNodes notes which nodes are gone.
func (p *Pools) lookAtNodes(ctx context.Context) {
	known := map[string]bool{}
	for _, k := range p.store.keys() {
		gone, ok := known[k.Node]
		if !ok {
			var err error
			if gone, err = p.cfg.Cluster.NodeGone(ctx, k.Node); err != nil {
				continue
			}
			known[k.Node] = gone
		}
		p.mu.Lock()
		n := p.need(k)
		switch {
		case !gone:
			n.gone = time.Time{}
		case n.gone.IsZero():
			n.gone = time.Now()
		}
		p.mu.Unlock()
	}
}
