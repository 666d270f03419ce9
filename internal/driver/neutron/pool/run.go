package pool

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// atLeast is the longest pause of the loops while there are pools: time alone shrinks an
	// idle pool, and frees that of a node that is gone.
	atLeast = time.Minute
	// forgetFreed is the time after which the record of a pod whose port was taken back is
	// gone from the cache.
	forgetFreed = 10 * time.Minute
	// Pauses between two tries of a call that fails, from the first, doubling up to the last.
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// Run fills and shrinks the pools until ctx ends. It runs in each term of a leader.
func (p *Pools) Run(ctx context.Context) error {
	p.begin()
	var running sync.WaitGroup
	for loop, step := range map[int]func(context.Context) time.Duration{
		refills: p.refill, removals: p.remove, changes: p.mark, rebuilds: p.rebuild,
	} {
		running.Go(func() {
			for ctx.Err() == nil {
				p.await(ctx, loop, step(ctx))
			}
		})
	}
	running.Wait()
	return nil
}

// begin forgets what the process knew of an earlier term: another leader worked since.
func (p *Pools) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled = false
	p.damaged = true
	p.listAfter = time.Time{}
	clear(p.retry)
	clear(p.freed)
	clear(p.strays)
	now := time.Now()
	for _, n := range p.needs {
		clear(n.waiting)
		n.last, n.gone, n.err, n.after, n.pause = now, time.Time{}, nil, time.Time{}, 0
	}
	p.signal()
}

// Settled reports whether the PortPools are compared with the records of pods in this term.
func (p *Pools) Settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settled
}

// await waits until a loop may have work, at most for d.
func (p *Pools) await(ctx context.Context, loop int, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.bells[loop]:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// level returns the state of a key in numbers. p.mu is held.
func (p *Pools) level(k Key, n *need, now time.Time) level {
	l := level{waiting: len(n.waiting), rate: n.meter.now(now), idle: now.Sub(n.last), desired: p.desired(k), closed: p.isClosed(n, now)}
	for _, e := range p.of(k) {
		for _, s := range e.slots {
			switch s.state {
			case ready:
				l.ready++
			case cooling, stale:
				l.cooling++
			case used:
				l.used++
			case leaving:
			}
		}
	}
	return l
}

// isClosed reports whether a pool gets no port any more: pools are off, or its network or its
// node goes. p.mu is held.
func (p *Pools) isClosed(n *need, now time.Time) bool {
	return p.cfg.Marks == Marks{} || n.closed || !n.gone.IsZero() && now.Sub(n.gone) >= p.cfg.Grace
}

// keysOf returns the keys of all pools. p.mu is held.
func (p *Pools) keysOf() map[string]Key {
	out := map[string]Key{}
	for _, e := range p.entries {
		out[e.key.text()] = e.key
	}
	return out
}

// marking is the work on one PortPool: the slots that rested, and the number of ready ones to
// remove; or the network that all have to follow.
type marking struct {
	key     Key
	name    string
	rested  map[int]bool
	remove  int
	network *v1alpha1.PortPoolNetwork
}

// mark is a step of the loop that changes states of slots without a call of the cloud.
func (p *Pools) mark(ctx context.Context) (pause time.Duration) {
	p.restore(ctx)
	p.lookAtNodes(ctx)
	all, empty, pause := p.markings(time.Now())
	for _, m := range all {
		err := p.do(ctx, m.key, m.name, func(c *content) bool {
			if m.network != nil {
				return c.follow(*m.network)
			}
			return c.mark(m.rested, m.remove)
		})
		switch {
		case err != nil:
			pause = min(pause, firstPause)
		case len(m.rested) > 0:
			p.cfg.Wake() // a pod may wait for a port, and none can be made
		}
	}
	for _, name := range empty {
		p.drop(ctx, name)
	}
	return pause
}

// markings returns the work that is due, the PortPools to delete, and the time until more is
// due.
func (p *Pools) markings(now time.Time) (all []marking, empty []string, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = atLeast
	maps.DeleteFunc(p.freed, func(_ identity, at time.Time) bool { return now.Sub(at) >= forgetFreed })
	for _, k := range p.keysOf() {
		n := p.need(k)
		maps.DeleteFunc(n.waiting, func(_ identity, at time.Time) bool { return now.Sub(at) >= forgetWaiting })
		l := p.level(k, n, now)
		_, remove := p.cfg.Marks.plan(l)
		unneeded := l.used == 0 && l.waiting == 0 && (l.closed || l.idle >= forgetAfter && l.desired < 0)
		for _, e := range slices.Backward(p.of(k)) {
			if e.object == nil {
				p.forget(e, l)
				continue
			}
			if e.outlives(n.network) {
				all = append(all, marking{key: k, name: e.name, network: n.network})
				continue
			}
			m, next := p.marking(e, remove, now)
			remove -= m.remove
			pause = min(pause, next)
			if len(m.rested) > 0 || m.remove > 0 {
				all = append(all, m)
			}
			// A stray is adopted by its PortPool: that stays until the cloud is read.
			if len(e.slots) == 0 && unneeded && !p.unlisted {
				empty = append(empty, e.name)
			}
		}
	}
	return all, empty, pause
}

// outlives reports whether a PortPool has ports without a pod, of a network or machine that was
// replaced. The port of a pod comes back after the pool was compared.
func (e *entry) outlives(network *v1alpha1.PortPoolNetwork) bool {
	was := e.object.Spec.Resolved
	return network != nil && was != nil && !sameNetwork(was, network) &&
		slices.ContainsFunc(e.slots, func(s slot) bool { return s.state != used && s.state != leaving })
}

// marking returns the work on one PortPool, with at most remove ready slots to remove, and the
// time until more is due. p.mu is held.
func (p *Pools) marking(e *entry, remove int, now time.Time) (m marking, next time.Duration) {
	m, next = marking{key: e.key, name: e.name, rested: map[int]bool{}}, atLeast
	for _, s := range e.slots {
		switch left := cooldown - now.Sub(p.resting[Place{e.name, s.n}]); {
		case s.state == ready && m.remove < remove:
			m.remove++
		case s.state == cooling && left <= 0:
			m.rested[s.n] = true
		case s.state == cooling:
			next = min(next, left)
		}
	}
	return m, next
}

// mark makes rested slots ready, and the last remove ready ones leaving.
func (c *content) mark(rested map[int]bool, remove int) (changed bool) {
	for i := len(c.slots) - 1; i >= 0 && remove > 0; i-- {
		if c.slots[i].state == ready {
			c.slots[i].state = leaving
			remove--
			changed = true
		}
	}
	for i := range c.slots {
		if c.slots[i].state == cooling && rested[c.slots[i].n] {
			c.slots[i].state = ready
			changed = true
		}
	}
	return changed
}

// drop deletes a PortPool without ports.
func (p *Pools) drop(ctx context.Context, name string) {
	p.mu.Lock()
	e := p.entries[name]
	if e == nil || e.busy || e.object == nil || len(e.slots) > 0 {
		p.mu.Unlock()
		return
	}
	o := e.object
	p.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.cfg.API.Delete(calling, o); err != nil {
		log.FromContext(ctx).V(1).Info("an empty PortPool is not deleted yet", "pool", name, "reason", err.Error())
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.object == o && !e.busy {
		delete(p.entries, name)
		if len(p.of(e.key)) == 0 {
			delete(p.needs, e.key.text())
		}
	}
}

// forget removes the entry of a PortPool that does not exist, if no pod asked for a while.
// p.mu is held.
func (p *Pools) forget(e *entry, l level) {
	if e.busy || l.idle < forgetAfter || l.waiting > 0 {
		return
	}
	delete(p.entries, e.name)
	if len(p.of(e.key)) == 0 {
		delete(p.needs, e.key.text())
	}
}

// lookAtNodes notes which nodes are gone.
func (p *Pools) lookAtNodes(ctx context.Context) {
	p.mu.Lock()
	keys := p.keysOf()
	p.mu.Unlock()
	known := map[string]bool{}
	for _, k := range keys {
		gone, ok := known[k.Node]
		if !ok {
			var err error
			if gone, err = p.cfg.NodeGone(ctx, k.Node); err != nil {
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

// restore writes PortPools again that were deleted by hand.
func (p *Pools) restore(ctx context.Context) {
	p.mu.Lock()
	lost := p.lost
	p.lost = map[string]*v1alpha1.PortPool{}
	p.mu.Unlock()
	for name, o := range lost {
		log.FromContext(ctx).Info("a PortPool with ports was deleted: it is written again", "pool", name)
		err := p.do(ctx, keyOf(&o.Spec), name, p.recovery(o).apply)
		if err != nil {
			p.mu.Lock()
			p.lost[name] = o
			p.mu.Unlock()
		}
	}
}
