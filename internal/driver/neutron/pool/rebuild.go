package pool

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// checkAfter is the time after which the network and the groups of a pool are read again.
	checkAfter = 5 * time.Minute
	// strayAfter is the time from the first sight of a port that no PortPool has until it is
	// deleted. Another leader may be about to record it.
	strayAfter = 10 * time.Minute
	// surplusAfter is the same for a port whose place another port has: no leader records it
	// any more, unless that port leaves. A controller that ended while Neutron made ports
	// leaves such behind.
	surplusAfter = time.Minute
)

// rebuild is a step of the loop that compares PortPools with the records of pods and with
// the cloud: in the beginning of a term, when a PortPool is damaged, and for stray ports.
func (p *Pools) rebuild(ctx context.Context) time.Duration {
	if err := p.settle(ctx); err != nil {
		log.FromContext(ctx).V(1).Info("pools of ports are not compared with the records of pods yet", "reason", err.Error())
		return firstPause
	}
	pause, now := atLeast, time.Now()
	p.mu.Lock()
	due, left := p.unlisted, p.listAfter.Sub(now)
	for _, at := range p.strays {
		due = due || !now.Before(at)
		pause = min(pause, at.Sub(now)) // due if it is not positive
	}
	p.mu.Unlock()
	switch {
	case due && left > 0:
		pause = min(atLeast, left)
	case due:
		pause = atLeast
		if err := p.compareWithCloud(ctx); err != nil {
			log.FromContext(ctx).Info("pools of ports are not compared with the cloud yet: recorded ports are handed out", "reason", err.Error(), "again", lastPause)
			p.mu.Lock()
			p.listAfter = time.Now().Add(lastPause)
			p.mu.Unlock()
			pause = min(pause, lastPause)
		}
	}
	return min(pause, p.check(ctx))
}

// settle compares the PortPools with the records of pods, if one may be damaged.
func (p *Pools) settle(ctx context.Context) error {
	p.mu.Lock()
	damaged := p.damaged
	p.damaged = false
	p.mu.Unlock()
	if !damaged {
		return nil
	}
	recorded, err := p.recorded(ctx, "")
	if err == nil {
		err = p.honour(ctx, recorded)
	}
	p.mu.Lock()
	first := !p.settled
	if err != nil {
		p.damaged = true
	} else {
		p.settled, p.unlisted = true, true
	}
	p.signal()
	p.mu.Unlock()
	if err == nil && first {
		p.cfg.Wake()
	}
	return err
}

// recorded returns the holders of the ports that records of pods name. A record may outlive
// the release of its port for a while: a pod whose port this process took back is left out.
func (p *Pools) recorded(ctx context.Context, node string) (map[string]Holder, error) {
	all, err := p.cfg.Recorded(ctx, node)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(all, func(_ string, h Holder) bool { return !p.freed[h.identity()].IsZero() })
	return all, nil
}

// honour gives each port to the pod whose record names it.
func (p *Pools) honour(ctx context.Context, recorded map[string]Holder) error {
	wrong := func(s *slot) bool {
		h, ok := recorded[s.ID]
		return ok && s.state != leaving && (s.state != used || s.holder.identity() != h.identity())
	}
	for name, e := range p.snapshot() {
		if !slices.ContainsFunc(e.slots, func(s slot) bool { return wrong(&s) }) {
			continue
		}
		err := p.do(ctx, e.key, name, func(c *content) (changed bool) {
			for i := range c.slots {
				if s := &c.slots[i]; wrong(s) {
					log.FromContext(ctx).Info("a port of a pool is that of the pod whose record names it", "pool", name, "port", s.ID)
					s.state, s.holder, changed = used, recorded[s.ID], true
				}
			}
			return changed
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// snapshot returns the entries as they are now.
func (p *Pools) snapshot() map[string]entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]entry{}
	for name, e := range p.entries {
		out[name] = entry{key: e.key, name: e.name, object: e.object, slots: e.slots}
	}
	return out
}

// compareWithCloud removes the slots whose ports do not exist or have another VLAN, and adopts the ports that no
// slot has: their place is in their identity. Slots are read before ports: a port exists
// before its slot.
func (p *Pools) compareWithCloud(ctx context.Context) error {
	before := p.snapshot()
	made, err := p.cfg.Made(ctx)
	if err != nil {
		return err
	}
	recorded, err := p.recorded(ctx, "")
	if err != nil {
		return err
	}
	exists := map[string]Made{}
	for _, m := range made {
		exists[m.ID] = m
	}
	for name, e := range before {
		missing := map[string]bool{}
		for _, s := range e.slots {
			if m, ok := exists[s.ID]; s.state != used && (!ok || m.VLAN != s.VLAN) {
				missing[s.ID] = true // a port with another VLAN is a stray
				continue
			}
			delete(exists, s.ID)
		}
		if len(missing) == 0 {
			continue
		}
		if err := p.do(ctx, e.key, name, func(c *content) bool {
			had := len(c.slots)
			c.slots = slices.DeleteFunc(c.slots, func(s slot) bool { return missing[s.ID] && s.state != used })
			return len(c.slots) < had
		}); err != nil {
			return err
		}
	}
	if err := p.adoptStrays(ctx, exists, recorded); err != nil {
		return err
	}
	p.mu.Lock()
	p.unlisted = false
	p.signal()
	p.mu.Unlock()
	return nil
}

// Listed takes the IDs of the ports of pools that a list of the cloud has. A port that no
// PortPool has in two lists is a stray: a request of a controller that has ended made it
// after the comparison with the cloud, which is repeated.
func (p *Pools) Listed(ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unknown := map[string]bool{}
	for _, id := range ids {
		unknown[id] = true
	}
	for _, e := range p.entries {
		for _, s := range e.slots {
			delete(unknown, s.ID)
		}
	}
	for id := range unknown {
		if _, known := p.strays[id]; p.unknown[id] && !known {
			p.unlisted = true
			p.signal()
		}
	}
	p.unknown = unknown
}

// Connected has the comparison with the cloud begin at once: there is a connection now.
func (p *Pools) Connected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listAfter = time.Time{}
	p.signal()
}

// adoptStrays adopts ports into the free places that they were made for. It deletes others,
// if they are strays for long, and no record names them.
func (p *Pools) adoptStrays(ctx context.Context, strays map[string]Made, recorded map[string]Holder) error {
	now := time.Now()
	p.mu.Lock()
	seen := p.strays
	p.strays = map[string]time.Time{}
	p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(strays)) {
		m := strays[id]
		place, err := p.adoptStray(ctx, m, recorded)
		if err != nil {
			return err
		}
		if _, named := recorded[id]; place == itsOwn || named {
			continue
		}
		due, again := seen[id]
		switch {
		case again:
		case place == anothers:
			due = now.Add(surplusAfter)
		default:
			due = now.Add(strayAfter)
		}
		if !now.Before(due) {
			log.FromContext(ctx).Info("a port of a pool that no PortPool has is deleted", "port", id, "pool", m.Pool)
			if err := p.cfg.Maker.Delete(ctx, m.Port, v1alpha1.PortPoolNetwork{}); err == nil {
				continue
			}
		}
		p.mu.Lock()
		p.strays[id] = due
		p.mu.Unlock()
	}
	return nil
}

// placeOf is the state of the place that a stray port was made for.
type placeOf int

const (
	noPlace  placeOf = iota // no PortPool has it, or its ports are of another network
	anothers                // another port has it
	itsOwn                  // the port has it
)

// adoptStray puts a port into the place that it was made for, if no other port has it.
func (p *Pools) adoptStray(ctx context.Context, m Made, recorded map[string]Holder) (placeOf, error) {
	e, ok := p.snapshot()[m.Pool]
	if !ok || e.object == nil || e.object.Spec.Resolved == nil || e.object.Spec.Resolved.ID != m.Network ||
		e.object.Spec.Resolved.ParentPort != m.Parent || e.key.Host != m.Host || len(m.Addresses) == 0 {
		return noPlace, nil
	}
	var place placeOf // not read if the change takes effect later
	err := p.do(ctx, e.key, m.Pool, func(c *content) bool {
		place = itsOwn
		at := c.at(func(s *slot) bool { return s.n == m.Slot || s.ID == m.ID })
		if at >= 0 {
			if c.slots[at].ID != m.ID {
				place = anothers
			}
			return false
		}
		c.add(m.Slot, m.Port, cooling, recorded)
		return true
	})
	if err != nil {
		return noPlace, err
	}
	return place, nil
}

// check reads the networks of the pools that were not compared with them for a while. It
// returns the time until the next is due.
func (p *Pools) check(ctx context.Context) (pause time.Duration) {
	pause = checkAfter
	var due []Key
	now := time.Now()
	p.mu.Lock()
	for _, k := range p.keysOf() {
		n := p.need(k)
		if n.checked.IsZero() {
			n.checked = now.Add(-checkAfter)
		}
		if left := checkAfter - now.Sub(n.checked); left > 0 {
			pause = min(pause, left)
		} else {
			due = append(due, k)
		}
	}
	p.mu.Unlock()
	for _, k := range due {
		var network v1alpha1.PortPoolNetwork
		network, err := p.cfg.Maker.Network(ctx, k)
		if err == nil {
			err = p.compare(ctx, k, network)
		}
		if err != nil {
			p.mu.Lock()
			p.need(k).checked = time.Now().Add(lastPause - checkAfter)
			p.mu.Unlock()
			pause = min(pause, lastPause)
		}
	}
	return pause
}
