package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// API stores PortPools.
type API interface {
	// Create fails with AlreadyExists if the PortPool exists.
	Create(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error)
	// Update fails with Conflict if the resourceVersion of o is not the current one.
	Update(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error)
	// Get reads the last committed state.
	Get(ctx context.Context, name string) (*v1alpha1.PortPool, error)
	// Delete deletes the PortPool if it still has the UID and resourceVersion of o.
	Delete(ctx context.Context, o *v1alpha1.PortPool) error
}

// ErrUnavailable means that the API server did not answer, or that the answer is unknown.
var ErrUnavailable = errors.New("PortPools cannot be written")

const (
	// callTimeout limits one call to the API.
	callTimeout = 10 * time.Second
	// maxTries is the number of writes of one group of changes.
	maxTries   = 8
	firstDelay = 5 * time.Millisecond
	lastDelay  = time.Second
)

// content is a PortPool that changes.
type content struct {
	spec  *v1alpha1.PortPoolSpec
	slots []slot
}

// at returns the index of a slot that fits; -1 if there is none.
func (c *content) at(fits func(s *slot) bool) int {
	return slices.IndexFunc(c.slots, func(s slot) bool { return fits(&s) })
}

// change changes a PortPool. It is applied again if another process wrote the PortPool in
// between. It reports whether it changed anything.
type change func(c *content) bool

// queued is a change that waits for the write.
type queued struct {
	apply change
	done  chan error
}

// entry is a PortPool as far as it is known.
type entry struct {
	key  Key
	name string
	// object is the last committed state; nil if there is none.
	object *v1alpha1.PortPool
	slots  []slot
	queue  []queued
	// busy is true while a goroutine writes the object.
	busy bool
}

// do applies a change to a PortPool, and returns when it is written. Changes that arrive
// during a write share the next one. The change may take effect after ctx has ended.
func (p *Pools) do(ctx context.Context, key Key, name string, apply change) error {
	q := queued{apply, make(chan error, 1)}
	p.mu.Lock()
	e := p.entry(key, name)
	e.queue = append(e.queue, q)
	if !e.busy {
		e.busy = true
		go p.commit(context.WithoutCancel(ctx), e)
	}
	p.mu.Unlock()
	select {
	case err := <-q.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// entry returns the entry of a PortPool, which it makes if there is none. p.mu is held.
func (p *Pools) entry(key Key, name string) *entry {
	e := p.entries[name]
	if e == nil {
		e = &entry{key: key, name: name}
		p.entries[name] = e
	}
	return e
}

// commit writes an object until no change is queued.
func (p *Pools) commit(ctx context.Context, e *entry) {
	for {
		p.mu.Lock()
		group := e.queue
		e.queue = nil
		if len(group) == 0 {
			e.busy = false
			p.signal() // an entry that is busy is not dropped
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		err := p.write(ctx, e, group)
		for _, q := range group {
			q.done <- err
		}
	}
}

// write applies a group of changes in one write, and again after a conflict. After an
// unknown outcome the object is read first.
func (p *Pools) write(ctx context.Context, e *entry, group []queued) (err error) {
	p.mu.Lock()
	base, known := e.object, e.object
	p.mu.Unlock()
	delay := firstDelay
	for try := range maxTries {
		if try > 0 {
			if !run.Sleep(ctx, delay) {
				break
			}
			delay = min(2*delay, lastDelay)
			if base, err = p.read(ctx, e.name); err != nil {
				continue
			}
			if base == nil && known != nil {
				group = append([]queued{p.recovery(known)}, group...)
				known = nil
			}
		}
		next, changed := e.apply(base, group)
		if !changed {
			p.learn(e, base)
			return nil
		}
		var written *v1alpha1.PortPool
		if written, err = p.send(ctx, next); err == nil {
			p.learn(e, written)
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
	}
	err = fmt.Errorf("%w: PortPool %s: %w", ErrUnavailable, e.name, err)
	log.FromContext(ctx).Error(err, "changes of a PortPool are not written: pods wait, and the release is repeated")
	return err
}

// recovery returns the change that puts back what a deleted PortPool had.
func (p *Pools) recovery(was *v1alpha1.PortPool) queued {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.damaged = true
	slots := parse(was)
	return queued{apply: func(c *content) bool { return c.recover(was, slots) }, done: make(chan error, 1)}
}

// recover puts back the ports of pods. The other ports may not exist any more: those that do
// are adopted from the cloud.
func (c *content) recover(was *v1alpha1.PortPool, slots []slot) (changed bool) {
	if c.spec.Resolved == nil {
		c.spec.Resolved, c.spec.Desired = was.Spec.Resolved, was.Spec.Desired
	}
	for _, s := range slots {
		if s.state != used {
			continue
		}
		switch at := c.at(func(now *slot) bool { return now.n == s.n || now.ID == s.ID }); {
		case at < 0:
			c.slots, changed = append(c.slots, s), true
		case c.slots[at].ID == s.ID && c.slots[at].state != used && c.slots[at].state != leaving:
			c.slots[at], changed = s, true
		}
	}
	return changed
}

// apply returns a PortPool with all changes of a group.
func (e *entry) apply(base *v1alpha1.PortPool, group []queued) (next *v1alpha1.PortPool, changed bool) {
	next = &v1alpha1.PortPool{Spec: e.key.spec()}
	next.Name = e.name
	next.Labels = map[string]string{v1alpha1.LabelNode: short(e.key.Node, validation.LabelValueMaxLength)}
	if base != nil {
		next = base.DeepCopy()
	}
	c := &content{spec: &next.Spec, slots: parse(next)}
	for _, q := range group {
		changed = q.apply(c) || changed
	}
	c.store()
	return next, changed
}

// store writes the slots into the spec.
func (c *content) store() {
	c.spec.Ports, c.spec.Ready, c.spec.Cooling, c.spec.Used = nil, 0, 0, 0
	for _, s := range c.slots {
		c.spec.Ports = append(c.spec.Ports, s.String())
		switch s.state {
		case ready:
			c.spec.Ready++
		case cooling, stale:
			c.spec.Cooling++
		case used:
			c.spec.Used++
		case leaving:
		}
	}
}

// parse returns the slots of a PortPool. Texts that a person damaged are left out: their
// ports are found again in the cloud and in the records of pods.
func parse(o *v1alpha1.PortPool) []slot {
	if o == nil {
		return nil
	}
	var out []slot
	for _, text := range o.Spec.Ports {
		s, err := parseSlot(text)
		if err != nil || slices.ContainsFunc(out, func(has slot) bool { return has.n == s.n || has.ID == s.ID }) {
			continue
		}
		out = append(out, s)
	}
	return out
}

func (p *Pools) read(ctx context.Context, name string) (*v1alpha1.PortPool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := p.cfg.API.Get(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

func (p *Pools) send(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if o.ResourceVersion == "" {
		return p.cfg.API.Create(ctx, o)
	}
	return p.cfg.API.Update(ctx, o)
}

// learn stores a committed state.
func (p *Pools) learn(e *entry, o *v1alpha1.PortPool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adopt(e, o)
}

// adopt replaces the known state of a PortPool by a later one; nil if the PortPool is gone.
// p.mu is held.
func (p *Pools) adopt(e *entry, o *v1alpha1.PortPool) {
	if o != nil && e.object != nil && !newer(o, e.object) {
		return
	}
	for i := range e.slots {
		if e.slots[i].state == used && p.holders[e.slots[i].holder.identity()].Pool == e.name {
			delete(p.holders, e.slots[i].holder.identity())
		}
	}
	e.object, e.slots = o, parse(o)
	if o != nil && len(e.slots) != len(o.Spec.Ports) {
		p.damaged = true
	}
	now := time.Now()
	resting := map[Place]time.Time{}
	for _, s := range e.slots {
		at := Place{e.name, s.n}
		switch s.state {
		case used:
			p.holders[s.holder.identity()] = at
			delete(p.need(e.key).waiting, s.holder.identity())
		case cooling:
			resting[at] = now
			if since, ok := p.resting[at]; ok {
				resting[at] = since
			}
		case ready, stale, leaving:
		}
	}
	for n := range maxSlots {
		delete(p.resting, Place{e.name, n})
	}
	maps.Copy(p.resting, resting)
	p.signal()
}

// newer reports whether a is a later state than b.
func newer(a, b *v1alpha1.PortPool) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}
