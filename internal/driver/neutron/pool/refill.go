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

// refill is the step that makes ports: one request at a time, for the pool with the most pods
// that wait.
func (p *Pools) refill(ctx context.Context) (pause time.Duration) {
	now := time.Now()
	for _, o := range p.recovered(now) {
		p.cfg.Cluster.ReportMade(ctx, o, nil)
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
	if !p.compared {
		return nil
	}
	for _, k := range p.store.keys() {
		have := p.store.of(k)
		o := have.named(k, k.name(0)).object
		if o == nil || !meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.ConditionReady) {
			continue
		}
		n := p.need(k)
		if create, _ := p.cfg.Marks.plan(p.level(k, n, have, now)); create <= 0 {
			n.err = nil
			out = append(out, o)
		}
	}
	return out
}

// choose returns the next request; nil if there is none, with the time until there may be.
func (p *Pools) choose(now time.Time) (best *job, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = atLeast
	if !p.compared {
		return nil, pause
	}
	var most, least int
	for _, k := range p.store.keys() {
		n, have := p.need(k), p.store.of(k)
		l := p.level(k, n, have, now)
		create, _ := p.cfg.Marks.plan(l)
		if create <= 0 {
			continue
		}
		replaced := errors.Is(n.err, errReplaced) && have.isEmpty() // the old ports are gone
		if left := n.after.Sub(now); left > 0 && !replaced {
			pause = min(pause, left)
			continue
		}
		if n.batch > 0 {
			create = min(create, n.batch)
		}
		j := have.places(k, create)
		if j == nil || best != nil && (len(n.waiting) < most || len(n.waiting) == most && l.ready >= least) {
			continue
		}
		best, most, least = j, len(n.waiting), l.ready
	}
	return best, pause
}

// places returns a request for ports at the lowest places of a key that are free; nil if
// there are none.
func (g group) places(k Key, create int) *job {
	for n := range maxObjects {
		j := &job{key: k, name: k.name(n)}
		e := g.named(k, j.name)
		for at := range maxSlots {
			if len(j.places) < create && !slices.ContainsFunc(e.slots(), func(s slot) bool { return int(s.Slot) == at }) {
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
	if err := p.compareNetwork(ctx, j.key, network); err != nil {
		return err
	}
	ports, err := p.cfg.Maker.Make(ctx, j.key, network, j.places)
	if err != nil {
		return err
	}
	// A port whose slot was lost is that of its pod.
	recorded, err := p.records.of(ctx, j.key.Node)
	if err != nil {
		return err
	}
	var surplus []Port
	err = p.store.do(ctx, j.key, j.name, func(s *v1alpha1.PortPoolSpec) (changed bool) {
		surplus = nil
		for i, port := range ports {
			place := j.places[i].Slot
			at := slices.IndexFunc(s.Ports, func(s slot) bool { return s.ID == port.ID || int(s.Slot) == place })
			switch {
			case at < 0:
				s.Ports = append(s.Ports, newSlot(place, port, ready, recorded))
				changed = true
			case s.Ports[at].ID != port.ID:
				surplus = append(surplus, port) // another process made one for the same place
			}
		}
		if changed {
			s.Resolved = &network
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

// compareNetwork compares the network of a key with that of its ports. Ports with other
// security groups are changed before they are handed out; ports of another network go.
// Errors: errReplaced while there are such.
func (p *Pools) compareNetwork(ctx context.Context, k Key, now v1alpha1.PortPoolNetwork) error {
	p.mu.Lock()
	n := p.need(k)
	n.checked, n.network = time.Now(), &now
	p.mu.Unlock()
	replaced := false
	for _, e := range p.store.of(k) {
		was := e.resolved()
		if was == nil || sameNetwork(was, &now) && slices.Equal(was.GroupIDs, now.GroupIDs) {
			continue
		}
		replaced = replaced || !sameNetwork(was, &now) && len(e.slots()) > 0
		if err := p.store.do(ctx, k, e.name, func(s *v1alpha1.PortPoolSpec) bool { return leaveNetwork(s, now) }); err != nil {
			return err
		}
	}
	if replaced {
		return fmt.Errorf("%w (network %s)", errReplaced, now.ID)
	}
	return nil
}

// leaveNetwork marks the ports that no pod has, if the network of their pool has become
// another: those with other groups are stale, and those of another network or machine leave.
func leaveNetwork(s *v1alpha1.PortPoolSpec, now v1alpha1.PortPoolNetwork) bool {
	was := s.Resolved
	if was == nil || sameNetwork(was, &now) && slices.Equal(was.GroupIDs, now.GroupIDs) {
		return false
	}
	same := sameNetwork(was, &now)
	for i := range s.Ports {
		switch at := &s.Ports[i]; {
		case at.State == used || at.State == leaving:
		case same:
			at.State = stale
		default:
			at.State = leaving
		}
	}
	if same || len(s.Ports) == 0 {
		s.Resolved = &now
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
	err = n.err
	p.mu.Unlock()
	if err != nil {
		log.FromContext(ctx).Info("no ports are made for a pool", "pool", j.name, "reason", err.Error(), "again", n.pause)
	}
	if o := p.store.of(j.key).named(j.key, j.key.name(0)).object; o != nil {
		p.cfg.Cluster.ReportMade(ctx, o, err)
	}
	if first || err == nil {
		p.cfg.Wake()
	}
}

// atOnce is the number of ports that are deleted or changed at once.
const atOnce = 4

// removal is a port to delete or to change.
type removal struct {
	key     Key
	place   Place
	slot    slot
	network v1alpha1.PortPoolNetwork
}

// remove is the step that deletes leaving ports, and changes stale ones.
func (p *Pools) remove(ctx context.Context) (pause time.Duration) {
	all, pause := p.removals(time.Now())
	var calls sync.WaitGroup
	for _, r := range all {
		calls.Go(func() {
			err := p.finish(ctx, r)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.retry, r.place)
			if err != nil && ctx.Err() == nil {
				p.retry[r.place] = time.Now().Add(lastPause)
				log.FromContext(ctx).Error(err, "a port of a pool is not deleted or changed yet", "port", r.slot.ID, "again", lastPause)
			}
		})
	}
	calls.Wait()
	if len(all) > 0 {
		return 0
	}
	return pause
}

// removals returns the next ports to delete or to change, and the time until more are due.
func (p *Pools) removals(now time.Time) (all []removal, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = atLeast
	if !p.compared {
		return nil, pause
	}
	for _, e := range p.store.all() {
		for _, s := range e.slots() {
			if s.State != leaving && s.State != stale {
				continue
			}
			at := Place{e.name, int(s.Slot)}
			if left := p.retry[at].Sub(now); left > 0 {
				pause = min(pause, left)
			} else if len(all) < atOnce {
				all = append(all, removal{e.key, at, s, e.key.held(s, e.resolved()).Network})
			}
		}
	}
	return all, pause
}

// finish deletes a leaving port, or changes a stale one, and records it.
func (p *Pools) finish(ctx context.Context, r removal) error {
	act := p.cfg.Maker.Delete
	if r.slot.State == stale {
		act = p.cfg.Maker.Change
	}
	if err := act(ctx, r.slot.PortPoolPort, r.network); err != nil {
		return err
	}
	err := p.store.do(ctx, r.key, r.place.Pool, func(s *v1alpha1.PortPoolSpec) bool {
		i := slices.IndexFunc(s.Ports, func(now slot) bool {
			return now.Slot == r.slot.Slot && now.ID == r.slot.ID && now.State == r.slot.State
		})
		if i < 0 {
			return false
		}
		if r.slot.State == stale {
			s.Ports = move(s.Ports, i, ready)
		} else {
			s.Ports = slices.Delete(s.Ports, i, i+1)
		}
		return true
	})
	if err == nil && r.slot.State == stale {
		p.cfg.Wake() // a pod may wait for the port
	}
	return err
}
