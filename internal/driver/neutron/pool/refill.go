package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// job is a request for ports.
type job struct {
	key    Key
	name   string
	places []Place
}

// refill is a step of the loop that makes ports: one request at a time, for the pool with
// the most pods that wait.
func (p *Pools) refill(ctx context.Context) (pause time.Duration) {
	now := time.Now()
	for _, o := range p.recovered(now) {
		p.cfg.Told(ctx, o, nil)
	}
	j, pause := p.choose(now)
	if j == nil {
		return pause
	}
	err := p.fill(ctx, *j)
	if ctx.Err() == nil {
		p.filled(ctx, *j, err)
	}
	return 0
}

// recovered returns the PortPools whose condition has a failure, and whose keys have enough
// ports now: ports came back from pods, or were adopted after a reply was lost.
func (p *Pools) recovered(now time.Time) (out []*v1alpha1.PortPool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.settled {
		return nil
	}
	for _, k := range p.keysOf() {
		e := p.entries[k.name(0)]
		if e == nil || e.object == nil || !meta.IsStatusConditionFalse(e.object.Status.Conditions, v1alpha1.ConditionReady) {
			continue
		}
		n := p.need(k)
		if create, _ := p.cfg.Marks.plan(p.level(k, n, now)); create <= 0 {
			n.err = nil
			out = append(out, e.object)
		}
	}
	return out
}

// choose returns the next request; nil if there is none, with the time until there may be.
func (p *Pools) choose(now time.Time) (best *job, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = atLeast
	if !p.settled || len(p.lost) > 0 {
		return nil, pause
	}
	var most, least int
	for _, k := range p.keysOf() {
		n := p.need(k)
		l := p.level(k, n, now)
		create, _ := p.cfg.Marks.plan(l)
		if create <= 0 {
			continue
		}
		replaced := errors.Is(n.err, errReplaced) && p.isEmpty(k) // the old ports are gone
		if left := n.after.Sub(now); left > 0 && !replaced {
			pause = min(pause, left)
			continue
		}
		if n.batch > 0 {
			create = min(create, n.batch)
		}
		j := p.places(k, create)
		if j == nil || best != nil && (len(n.waiting) < most || len(n.waiting) == most && l.ready >= least) {
			continue
		}
		best, most, least = j, len(n.waiting), l.ready
	}
	return best, pause
}

// isEmpty reports whether a key has no port in any state. p.mu is held.
func (p *Pools) isEmpty(k Key) bool {
	return !slices.ContainsFunc(p.of(k), func(e *entry) bool { return len(e.slots) > 0 })
}

// places returns a request for ports at the lowest places of a key that are free; nil if
// there are none. p.mu is held.
func (p *Pools) places(k Key, create int) *job {
	for n := range maxObjects {
		j := &job{key: k, name: k.name(n)}
		var slots []slot
		if e := p.entries[j.name]; e != nil {
			slots = e.slots
		}
		for at := range maxSlots {
			if len(j.places) < create && !slices.ContainsFunc(slots, func(s slot) bool { return s.n == at }) {
				j.places = append(j.places, Place{j.name, at})
			}
		}
		if len(j.places) > 0 {
			return j
		}
	}
	return nil
}

// errReplaced means that a pool has ports of another network than its name is that of now, or
// on another machine than its node is.
var errReplaced = errors.New("the network was replaced by another of the same name, or the machine of the node by another: the pool is emptied first")

// sameNetwork reports whether ports that were made with one are ports of the other, apart from
// their groups.
func sameNetwork(a, b *v1alpha1.PortPoolNetwork) bool {
	return a.ID == b.ID && a.ParentPort == b.ParentPort && a.ParentMAC == b.ParentMAC
}

// fill makes ports and records them. A port that exists already at its place is adopted: the
// reply to its create may have been lost, or the write of its record failed.
func (p *Pools) fill(ctx context.Context, j job) error {
	network, err := p.cfg.Maker.Network(ctx, j.key)
	if err != nil {
		return err
	}
	if err := p.compare(ctx, j.key, network); err != nil {
		return err
	}
	ports, err := p.cfg.Maker.Make(ctx, j.key, network, j.places)
	if err != nil {
		return err
	}
	// A port whose slot was lost is that of its pod.
	recorded, err := p.recorded(ctx, j.key.Node)
	if err != nil {
		return err
	}
	var surplus []Port
	err = p.do(ctx, j.key, j.name, func(c *content) bool {
		surplus = nil
		changed := false
		for i, port := range ports {
			at := c.at(func(s *slot) bool { return s.ID == port.ID || s.n == j.places[i].Slot })
			switch {
			case at < 0:
				c.add(j.places[i].Slot, port, ready, recorded)
				changed = true
			case c.slots[at].ID != port.ID:
				surplus = append(surplus, port) // another process made one for the same place
			}
		}
		if changed {
			c.spec.Resolved = &network
		}
		return changed
	})
	if err != nil {
		return err // the change may still take effect: surplus ports go as strays
	}
	for _, port := range surplus {
		if err := p.cfg.Maker.Delete(ctx, port, network); err != nil {
			log.FromContext(ctx).Error(err, "a surplus port of a pool is not deleted yet", "port", port.ID)
		}
	}
	return nil
}

// add adds a port in a state, or as that of the pod whose record names it.
func (c *content) add(n int, port Port, as state, recorded map[string]Holder) {
	s := slot{n: n, state: as, Port: port}
	if h, ok := recorded[port.ID]; ok {
		s.state, s.holder = used, h
	}
	c.slots = append(c.slots, s)
}

// compare compares the network of a key with that of its ports. Ports with other
// security groups are changed before they are handed out; ports of another network go.
// Errors: errReplaced while there are such.
func (p *Pools) compare(ctx context.Context, k Key, now v1alpha1.PortPoolNetwork) error {
	p.mu.Lock()
	entries := p.of(k)
	n := p.need(k)
	n.checked, n.network = time.Now(), &now
	p.mu.Unlock()
	replaced := false
	for _, e := range entries {
		p.mu.Lock()
		differs, others := e.differs(now)
		p.mu.Unlock()
		replaced = replaced || others
		if !differs {
			continue
		}
		if err := p.do(ctx, k, e.name, func(c *content) bool { return c.follow(now) }); err != nil {
			return err
		}
	}
	if replaced {
		return fmt.Errorf("%w (network %s)", errReplaced, now.ID)
	}
	return nil
}

// differs reports whether a PortPool has another network or other groups; others is true if
// it has ports of another network or machine. p.mu is held.
func (e *entry) differs(now v1alpha1.PortPoolNetwork) (differs, others bool) {
	if e.object == nil || e.object.Spec.Resolved == nil {
		return false, false
	}
	was := e.object.Spec.Resolved
	if !sameNetwork(was, &now) {
		return true, len(e.slots) > 0
	}
	return !slices.Equal(was.GroupIDs, now.GroupIDs), false
}

// follow marks the ports that no pod has: those with other groups are stale, and those of
// another network or machine leave.
func (c *content) follow(now v1alpha1.PortPoolNetwork) bool {
	was := c.spec.Resolved
	if was == nil || sameNetwork(was, &now) && slices.Equal(was.GroupIDs, now.GroupIDs) {
		return false
	}
	for i := range c.slots {
		switch s := c.slots[i].state; {
		case s == used || s == leaving:
		case !sameNetwork(was, &now):
			c.slots[i].state = leaving
		default:
			c.slots[i].state = stale
		}
	}
	if sameNetwork(was, &now) || len(c.slots) == 0 {
		c.spec.Resolved = &now
	}
	return true
}

// filled notes the result of a request, and wakes the pods that wait.
func (p *Pools) filled(ctx context.Context, j job, err error) {
	p.cfg.Metrics.refilled(len(j.places), err)
	p.mu.Lock()
	n := p.need(j.key)
	first := (n.err == nil) != (err == nil)
	n.err = err
	switch {
	case err == nil:
		n.pause, n.batch = 0, 0
	case p.cfg.Scarce(err) && len(j.places) > 1:
		// Fewer may still be had.
		n.batch = (len(j.places) + 1) / 2
		n.err = nil
		first = false
	default:
		n.pause = min(max(firstPause, 2*n.pause), lastPause)
		n.after = time.Now().Add(n.pause)
	}
	var o *v1alpha1.PortPool
	if e := p.entries[j.key.name(0)]; e != nil {
		o = e.object
	}
	err = n.err
	p.mu.Unlock()
	if err != nil {
		log.FromContext(ctx).Info("no ports are made for a pool", "pool", j.name, "reason", err.Error(), "again", n.pause)
	}
	if o != nil {
		p.cfg.Told(ctx, o, err)
	}
	if first || err == nil {
		p.cfg.Wake()
	}
}

// atOnce is the number of ports that are deleted or changed at once.
const atOnce = 4

// remove is a step of the loop that deletes leaving ports, and changes stale ones.
func (p *Pools) remove(ctx context.Context) (pause time.Duration) {
	type work struct {
		key     Key
		place   Place
		slot    slot
		network v1alpha1.PortPoolNetwork
	}
	pause = atLeast
	var all []work
	p.mu.Lock()
	now := time.Now()
	for name, e := range p.entries {
		for _, s := range e.slots {
			if s.state != leaving && s.state != stale {
				continue
			}
			at := Place{name, s.n}
			if left := p.retry[at].Sub(now); left > 0 {
				pause = min(pause, left)
				continue
			}
			if len(all) < atOnce {
				all = append(all, work{e.key, at, s, e.held(s).Network})
			}
		}
	}
	p.mu.Unlock()
	var calls sync.WaitGroup
	for _, w := range all {
		calls.Go(func() {
			err := p.finish(ctx, w.key, w.place, w.slot, w.network)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.retry, w.place)
			if err != nil && ctx.Err() == nil {
				p.retry[w.place] = time.Now().Add(lastPause)
				log.FromContext(ctx).Error(err, "a port of a pool is not deleted or changed yet", "port", w.slot.ID, "again", lastPause)
			}
		})
	}
	calls.Wait()
	if len(all) > 0 {
		return 0
	}
	return pause
}

// finish deletes a leaving port, or changes a stale one, and records it.
func (p *Pools) finish(ctx context.Context, k Key, at Place, s slot, n v1alpha1.PortPoolNetwork) error {
	act := func() error { return p.cfg.Maker.Delete(ctx, s.Port, n) }
	if s.state == stale {
		act = func() error { return p.cfg.Maker.Change(ctx, s.Port, n) }
	}
	if err := act(); err != nil {
		return err
	}
	return p.do(ctx, k, at.Pool, func(c *content) bool {
		i := c.at(func(now *slot) bool { return now.n == s.n && now.ID == s.ID && now.state == s.state })
		if i < 0 {
			return false
		}
		if s.state == stale {
			c.move(i, ready)
		} else {
			c.slots = slices.Delete(c.slots, i, i+1)
		}
		return true
	})
}
