package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Maker makes ports in the cloud.
type Maker interface {
	// Network reads the network of a key.
	Network(ctx context.Context, k Key) (v1alpha1.PortPoolNetwork, error)
	// Make makes ports that are ready to be plugged, and adopts those that exist already at
	// their places. The result has the order of places. After an error some may exist.
	Make(ctx context.Context, k Key, n v1alpha1.PortPoolNetwork, places []Place) ([]Port, error)
	// Change gives a port the security groups of its pool.
	Change(ctx context.Context, port Port, n v1alpha1.PortPoolNetwork) error
	// Delete deletes a port; nil if it is gone. n is empty if no PortPool has the port.
	Delete(ctx context.Context, port Port, n v1alpha1.PortPoolNetwork) error
}

// Config of the pools.
type Config struct {
	API   API
	Maker Maker
	// Marks are zero if pools are off. Then the ports of earlier pools are taken back.
	Marks Marks
	// Recorded returns the holders of the ports that PodAttachments of a node name, by the
	// port's ID; of all nodes if the node is empty.
	Recorded func(ctx context.Context, node string) (map[string]Holder, error)
	// Made lists the ports of this cluster's pools in the cloud.
	Made func(ctx context.Context) ([]Made, error)
	// NodeGone reports whether a node does not exist.
	NodeGone func(ctx context.Context, node string) (bool, error)
	// Grace is the time from the end of a node until its pools are freed.
	Grace time.Duration
	// Scarce reports whether an error of Make may not come back with fewer ports: a quota or
	// a network is nearly used up.
	Scarce func(err error) bool
	// Wake enqueues the pods that wait.
	Wake func()
	// Told is called with the result of each try to make ports for a PortPool; err is nil if
	// they are made.
	Told func(ctx context.Context, pool *v1alpha1.PortPool, err error)
	// Metrics counts; nil for none.
	Metrics *Metrics
}

// Made is a port of a pool in the cloud.
type Made struct {
	Port
	Place
	// Network, Host and Parent are those that a PortPool has of the port.
	Network, Host, Parent string
}

// ErrEmpty means that a pool has no ready port: some are being made, and the pod waits.
var ErrEmpty = errors.New("no port is ready")

// ErrOwn means that a pool does not serve: a pod gets a port of its own.
var ErrOwn = errors.New("the pool makes no ports")

const (
	// cooldown is how long a port rests between two pods.
	cooldown = 10 * time.Second
	// forgetWaiting is the time after which a pod that did not ask again is not waited for.
	forgetWaiting = 2 * time.Minute
	// maxKeys is the number of pools of one node. A pod beyond gets a port of its own.
	maxKeys = 16
)

// need is what pods asked of a key, as far as this process knows.
type need struct {
	meter meter
	// last is when a pod asked last, or when the pool was first seen.
	last time.Time
	// waiting has when each pod that waits asked last.
	waiting map[identity]time.Time
	// err is the error of the last try to make ports; after is when the next one is due, and
	// pause is the time between them.
	err   error
	after time.Time
	pause time.Duration
	// batch bounds the next request, after one failed for want of quota or addresses.
	batch int
	// gone is when the node was first seen to be gone.
	gone time.Time
	// checked is when the network was read last, and network how it was; nil before.
	checked time.Time
	network *v1alpha1.PortPoolNetwork
	// closed is true if the network is to be freed.
	closed bool
}

// Pools are the pools of a cluster. It is safe for concurrent use.
type Pools struct {
	cfg Config

	mu      sync.Mutex
	entries map[string]*entry
	// needs has what pods asked of each key, by its text.
	needs map[string]*need
	// holders has the place of the port of each holder.
	holders map[identity]Place
	// resting has when each cooling port was first seen to be so.
	resting map[Place]time.Time
	// lost are PortPools that were deleted by hand while they had ports.
	lost map[string]*v1alpha1.PortPool
	// damaged is true if PortPools have to be compared with the records of pods: at first, and
	// if one has texts that are not those of ports. unlisted is true if they have to be
	// compared with the cloud, not before listAfter.
	damaged, unlisted bool
	listAfter         time.Time
	// freed has when this process took the ports of holders back, for a while.
	freed map[identity]time.Time
	// settled is true once the records of pods are compared with the PortPools in this term.
	settled bool
	// retry has when the next call for a port that failed is due.
	retry map[Place]time.Time
	// strays has when each port in the cloud that no PortPool has is to be deleted. unknown are
	// those of the last list that Listed got.
	strays  map[string]time.Time
	unknown map[string]bool
	// bells ring when there may be work, one for each loop.
	bells [loops]chan struct{}
}

// The loops that work while this process leads.
const (
	refills = iota
	removals
	changes
	rebuilds
	loops
)

// New returns pools without a PortPool: Learn adds them.
func New(cfg Config) *Pools {
	p := &Pools{
		cfg: cfg, entries: map[string]*entry{}, needs: map[string]*need{}, holders: map[identity]Place{},
		resting: map[Place]time.Time{}, lost: map[string]*v1alpha1.PortPool{},
		retry: map[Place]time.Time{}, strays: map[string]time.Time{}, freed: map[identity]time.Time{},
	}
	for i := range p.bells {
		p.bells[i] = make(chan struct{}, 1)
	}
	cfg.Metrics.measure(p)
	return p
}

// Learn takes a PortPool from a watch.
func (p *Pools) Learn(o *v1alpha1.PortPool) { p.learn(p.known(o), o) }

func (p *Pools) known(o *v1alpha1.PortPool) *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := keyOf(&o.Spec)
	p.need(k)
	return p.entry(k, o.Name)
}

// Gone takes the end of a PortPool from a watch. If it had ports, it was deleted by hand, and
// is written again.
func (p *Pools) Gone(o *v1alpha1.PortPool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[o.Name]
	if e == nil || e.object == nil || e.object.UID != o.UID {
		return
	}
	if len(e.object.Spec.Ports) > 0 {
		p.lost[o.Name] = e.object
	}
	p.adopt(e, nil)
}

// signal wakes the loops, because there may be work.
func (p *Pools) signal() {
	for _, bell := range p.bells {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
}

// need returns the need of a key, which it makes if there is none. p.mu is held.
func (p *Pools) need(k Key) *need {
	n := p.needs[k.text()]
	if n == nil {
		n = &need{last: time.Now(), waiting: map[identity]time.Time{}}
		p.needs[k.text()] = n
	}
	return n
}

// Held is a port that a pod has.
type Held struct {
	Port
	Holder
	Key     Key
	Network v1alpha1.PortPoolNetwork
}

// Of returns the port that a holder has.
func (p *Pools) Of(h Holder) (Held, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.holders[h.identity()]
	if !ok {
		return Held{}, false
	}
	e := p.entries[at.Pool]
	for _, s := range e.slots {
		if s.n == at.Slot && s.state == used {
			return e.held(s), true
		}
	}
	return Held{}, false
}

func (e *entry) held(s slot) Held {
	out := Held{Port: s.Port, Holder: s.holder, Key: e.key}
	if e.object != nil && e.object.Spec.Resolved != nil {
		out.Network = *e.object.Spec.Resolved
	}
	return out
}

// All yields the ports that pods have.
func (p *Pools) All() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		p.mu.Lock()
		var all []Held
		for _, name := range slices.Sorted(maps.Keys(p.entries)) {
			for _, s := range p.entries[name].slots {
				if s.state == used {
					all = append(all, p.entries[name].held(s))
				}
			}
		}
		p.mu.Unlock()
		for _, h := range all {
			if !yield(h) {
				return
			}
		}
	}
}

// Peek returns the port that the next pod of a key would get now. ok is false if none is
// ready.
func (p *Pools) Peek(k Key) (h Held, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.of(k) {
		if n := slices.IndexFunc(e.slots, func(s slot) bool { return s.state == ready }); n >= 0 {
			return e.held(e.slots[n]), true
		}
	}
	return Held{}, false
}

// of returns the entries of a key in the order of their numbers. p.mu is held.
func (p *Pools) of(k Key) []*entry {
	var out []*entry
	for n := range maxObjects {
		if e := p.entries[k.name(n)]; e != nil {
			out = append(out, e)
		}
	}
	return out
}

// Take hands a port out, and returns the same port if the holder has one. Errors: ErrEmpty,
// with the reason, while none is ready; ErrOwn; ErrUnavailable.
func (p *Pools) Take(ctx context.Context, k Key, h Holder) (Held, error) {
	if err := p.ask(k, h); err != nil {
		return Held{}, err
	}
	for n := range maxObjects {
		name := k.name(n)
		p.mu.Lock()
		e := p.entries[name]
		// A write that is under way may be that of this holder.
		has := e != nil && (e.busy || slices.ContainsFunc(e.slots, func(s slot) bool { return s.state == ready }))
		p.mu.Unlock()
		if !has {
			continue
		}
		var got slot
		var ok bool
		if err := p.do(ctx, k, name, func(c *content) (changed bool) {
			got, ok, changed = c.take(h, ctx.Err() == nil)
			return changed
		}); err != nil {
			return Held{}, err
		}
		if ok {
			p.served(k, h)
			p.mu.Lock()
			defer p.mu.Unlock()
			return e.held(got), nil
		}
	}
	if held, ok := p.Of(h); ok { // by another request of the same pod
		return held, nil
	}
	return Held{}, p.missed(k, h)
}

// take marks the first ready slot as used, unless the holder has one. wanted is false if the
// caller has gone: the pod may have ended since.
func (c *content) take(h Holder, wanted bool) (got slot, ok, changed bool) {
	if n := c.at(func(s *slot) bool { return s.state == used && s.holder.identity() == h.identity() }); n >= 0 {
		return c.slots[n], true, false
	}
	n := c.at(func(s *slot) bool { return s.state == ready })
	if n < 0 || !wanted {
		return slot{}, false, false
	}
	c.slots[n].state, c.slots[n].holder = used, h
	return c.slots[n], true, true
}

// ask counts a pod that asks for a port. Errors: ErrOwn.
func (p *Pools) ask(k Key, h Holder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Marks == (Marks{}) {
		return fmt.Errorf("%w: pools are off", ErrOwn)
	}
	if p.needs[k.text()] == nil {
		of := map[string]bool{}
		for _, e := range p.entries {
			if e.key.Node == k.Node {
				of[e.key.text()] = true
			}
		}
		if len(of) >= maxKeys {
			return fmt.Errorf("%w: node %s has %d pools already", ErrOwn, k.Node, len(of))
		}
	}
	n, now := p.need(k), time.Now()
	if p.isClosed(n, now) {
		return fmt.Errorf("%w: that of %s is off, or is being freed", ErrOwn, k)
	}
	if p.desired(k) == 0 {
		return fmt.Errorf("%w: that of %s is drained", ErrOwn, k)
	}
	if errors.Is(n.err, errReplaced) {
		return fmt.Errorf("%w: that of %s: %w", ErrOwn, k, n.err) // a pod may have a port of before for long
	}
	p.entry(k, k.name(0))
	n.last = now
	if _, again := n.waiting[h.identity()]; !again {
		n.meter.count(now)
	}
	return nil
}

// desired returns the number of ready ports that people ask for; -1 if they do not. p.mu is
// held.
func (p *Pools) desired(k Key) int {
	if e := p.entries[k.name(0)]; e != nil && e.object != nil && e.object.Spec.Desired != nil {
		return int(*e.object.Spec.Desired)
	}
	return -1
}

// served ends the wait of a pod.
func (p *Pools) served(k Key, h Holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.Metrics.took(hit)
	delete(p.need(k).waiting, h.identity())
	delete(p.freed, h.identity())
	p.signal()
}

// missed begins the wait of a pod, and returns why.
func (p *Pools) missed(k Key, h Holder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.need(k)
	if _, again := n.waiting[h.identity()]; !again {
		p.cfg.Metrics.took(miss)
	}
	n.waiting[h.identity()] = time.Now()
	p.signal()
	if n.err != nil && (!p.cfg.Scarce(n.err) || !p.isUnused(k)) {
		return fmt.Errorf("%w in the pool of %s, and none can be made now: %w", ErrEmpty, k, n.err)
	}
	return fmt.Errorf("%w in the pool of %s: ports are being made", ErrEmpty, k)
}

// isUnused reports whether a key has ports that no pod has, or may have when a write is done:
// those that leave or rest make room for others, or serve the next pod. p.mu is held.
func (p *Pools) isUnused(k Key) bool {
	return slices.ContainsFunc(p.of(k), func(e *entry) bool {
		return e.busy || slices.ContainsFunc(e.slots, func(s slot) bool { return s.state != used })
	})
}

// Free takes the port of a holder back; the port rests before another pod gets it. It returns
// the port; ok is false if the holder has none. Errors: ErrUnavailable.
func (p *Pools) Free(ctx context.Context, h Holder) (freed Port, ok bool, err error) {
	p.mu.Lock()
	at, has := p.holders[h.identity()]
	var k Key
	if has {
		k = p.entries[at.Pool].key
	}
	for _, n := range p.needs {
		delete(n.waiting, h.identity())
	}
	if has {
		p.freed[h.identity()] = time.Now()
	}
	p.mu.Unlock()
	if !has {
		return Port{}, false, nil
	}
	var was Port // not read if the change takes effect later
	err = p.do(ctx, k, at.Pool, func(c *content) bool {
		n := c.at(func(s *slot) bool { return s.state == used && s.holder.identity() == h.identity() })
		if n < 0 {
			return false // another process freed it
		}
		was = c.slots[n].Port
		c.move(n, cooling)
		return true
	})
	if err != nil {
		return Port{}, false, err
	}
	return was, true, nil
}

// move gives a slot another state, and puts it behind all others.
func (c *content) move(n int, to state) {
	s := c.slots[n]
	s.state, s.holder = to, Holder{}
	c.slots = append(slices.Delete(c.slots, n, n+1), s)
}

// Confirm reads from the API server whether a holder still has a port.
func (p *Pools) Confirm(ctx context.Context, h Holder) (Held, bool, error) {
	p.mu.Lock()
	at, has := p.holders[h.identity()]
	var e *entry
	if has {
		e = p.entries[at.Pool]
	}
	p.mu.Unlock()
	if !has {
		return Held{}, false, nil
	}
	o, err := p.read(ctx, at.Pool)
	if err != nil {
		return Held{}, false, fmt.Errorf("%w: PortPool %s: %w", ErrUnavailable, at.Pool, err)
	}
	p.learn(e, o)
	got, ok := p.Of(h)
	return got, ok, nil
}

// Close frees the pools of a network, before the network is removed: ready ports are deleted
// and none is made. It returns the number of ports that are left.
func (p *Pools) Close(network string) (left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if e.object != nil && e.object.Spec.Resolved != nil && e.object.Spec.Resolved.ID == network {
			p.need(e.key).closed = true
			left += len(e.slots)
		}
	}
	p.signal()
	return left
}
