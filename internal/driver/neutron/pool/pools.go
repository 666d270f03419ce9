// Package pool keeps ports ready before pods need them. A PortPool in the cluster has the
// ports of one key and the pod that has each. A port is handed out, and comes back, by
// compare-and-swap on this object: two leaders at once never give one port to two pods.
//
// The package does not know how a port is made: a Maker does.
package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
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

// Cluster has the reads of pools in the cluster, and their reports to it.
type Cluster interface {
	// Recorded returns the holders of the ports that PodAttachments of a node name, by the
	// port's ID; of all nodes if the node is empty.
	Recorded(ctx context.Context, node string) (map[string]Holder, error)
	// NodeGone reports whether a node does not exist.
	NodeGone(ctx context.Context, node string) (bool, error)
	// ReportMade takes the result of each try to make ports for a PortPool; err is nil if
	// they are made.
	ReportMade(ctx context.Context, o *v1alpha1.PortPool, err error)
	// ReportRecorded takes the ID of a port that a PortPool had otherwise than the record of
	// the pod that has it.
	ReportRecorded(ctx context.Context, o *v1alpha1.PortPool, port string, h Holder)
}

// Config of the pools.
type Config struct {
	API     API
	Maker   Maker
	Cluster Cluster
	// Marks are zero if pools are off. Then the ports of earlier pools are taken back.
	Marks Marks
	// Made lists the ports of this cluster's pools in the cloud.
	Made func(ctx context.Context) ([]Made, error)
	// Grace is the time from the end of a node until its pools are freed.
	Grace time.Duration
	// Scarce reports whether an error of Make may not come back with fewer ports: a quota or
	// a network is nearly used up.
	Scarce func(err error) bool
	// Wake enqueues the pods that wait.
	Wake func()
	// Metrics counts; nil for none.
	Metrics *Metrics
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
	cfg     Config
	bell    bell
	store   *store
	records *records
	strays  *strays

	// mu is taken before that of the store.
	mu sync.Mutex
	// needs has what pods asked of each key, by its text.
	needs map[string]*need
	// retry has when the next call for a port that failed is due.
	retry map[Place]time.Time
	// compared is true once the PortPools are compared with the records of pods in this term.
	compared bool
}

// New returns pools without a PortPool: Learn adds them.
func New(cfg Config) *Pools {
	p := &Pools{cfg: cfg, bell: make(bell, 1), needs: map[string]*need{}, retry: map[Place]time.Time{}}
	p.store = newStore(cfg.API, p.bell)
	p.records = &records{cluster: cfg.Cluster, released: map[identity]time.Time{}}
	p.strays = &strays{store: p.store, records: p.records, maker: cfg.Maker, list: cfg.Made}
	cfg.Metrics.measure(p)
	return p
}

// Learn takes a PortPool from a watch.
func (p *Pools) Learn(o *v1alpha1.PortPool) { p.store.learn(o) }

// Gone takes the end of a PortPool from a watch.
func (p *Pools) Gone(o *v1alpha1.PortPool) { p.store.gone(o) }

// Listed takes the IDs of the ports of pools that a list of the cloud has.
func (p *Pools) Listed(ids []string) { p.strays.listed(ids) }

// Connected has the comparison with the cloud begin at once: there is a connection now.
func (p *Pools) Connected() { p.strays.connected() }

// need returns the need of a key, which it makes if there is none. p.mu is held.
func (p *Pools) need(k Key) *need {
	text := k.text()
	n := p.needs[text]
	if n == nil {
		n = &need{last: time.Now(), waiting: map[identity]time.Time{}}
		p.needs[text] = n
	}
	return n
}

// Of returns the port that a holder has; ok is false if it has none. Errors:
// fault.ErrUnavailable while the records of pods name ports of its PortPool otherwise than the
// PortPool does.
func (p *Pools) Of(h Holder) (held Held, ok bool, err error) {
	e, _, ok := p.store.placeOf(h)
	n := heldBy(e.slots(), h)
	switch {
	case !ok || n < 0:
		return Held{}, false, nil
	case e.correction != nil:
		return Held{}, false, fmt.Errorf("%w: PortPool %s: its ports are given to the pods whose records name them first", fault.ErrUnavailable, e.name)
	default:
		return e.key.held(e.slots()[n], e.resolved()), true, nil
	}
}

// All returns the ports that pods have.
func (p *Pools) All() (all []Held) {
	for _, e := range p.store.all() {
		for _, s := range e.slots() {
			if s.State == used {
				all = append(all, e.key.held(s, e.resolved()))
			}
		}
	}
	return all
}

// Ready returns the number of ports that wait for pods.
func (p *Pools) Ready() int { return group(p.store.all()).count()[ready] }

// Peek returns the port that the next pod of a key would get now. ok is false if none is
// ready.
func (p *Pools) Peek(k Key) (h Held, ok bool) {
	for _, e := range p.store.of(k) {
		if n := in(e.slots(), ready); n >= 0 {
			return k.held(e.slots()[n], e.resolved()), true
		}
	}
	return Held{}, false
}

// Take hands a port out, and returns the same port if the holder has one. Errors: ErrEmpty,
// with the reason, while none is ready; ErrOwn; fault.ErrUnavailable.
func (p *Pools) Take(ctx context.Context, k Key, h Holder) (Held, error) {
	if err := p.ask(k, h); err != nil {
		return Held{}, err
	}
	for n := range maxObjects {
		name := k.name(n)
		// A write that is under way may be that of this holder.
		if e := p.store.of(k).named(k, name); e.pending == 0 && in(e.slots(), ready) < 0 {
			continue
		}
		var got Held // not read if the change takes effect later
		var ok bool
		err := p.store.do(ctx, k, name, func(s *v1alpha1.PortPoolSpec) (changed bool) {
			var at int
			at, changed = take(s, h, ctx.Err() == nil)
			if ok = at >= 0; ok {
				p.records.take(h) // also if the caller has gone when it is written
				got = k.held(s.Ports[at], s.Resolved)
			}
			return changed
		})
		if err != nil {
			return Held{}, err
		}
		if ok {
			p.served(k, h)
			return got, nil
		}
	}
	if held, ok, err := p.Of(h); ok || err != nil { // by another request of the same pod
		return held, err
	}
	return Held{}, p.missed(k, h)
}

// take marks the first ready slot as used, unless the holder has one. It returns the index of
// the holder's slot; -1 if there is none. wanted is false if the caller has gone: the pod may
// have ended since.
func take(s *v1alpha1.PortPoolSpec, h Holder, wanted bool) (at int, changed bool) {
	if at = heldBy(s.Ports, h); at >= 0 {
		return at, false
	}
	if at = in(s.Ports, ready); at < 0 || !wanted {
		return -1, false
	}
	s.Ports[at].State, s.Ports[at].Pod = used, &h
	return at, true
}

// ask counts a pod that asks for a port. Errors: ErrOwn.
func (p *Pools) ask(k Key, h Holder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Marks == (Marks{}) {
		return fmt.Errorf("%w: pools are off", ErrOwn)
	}
	have := p.store.of(k)
	if len(have) == 0 {
		of := 0
		for _, other := range p.store.keys() {
			if other.Node == k.Node {
				of++
			}
		}
		if of >= maxKeys {
			return fmt.Errorf("%w: node %s has %d pools already", ErrOwn, k.Node, of)
		}
	}
	n, now := p.need(k), time.Now()
	switch {
	case p.isClosed(n, now):
		return fmt.Errorf("%w: that of %s is off, or is being freed", ErrOwn, k)
	case have.desired(k) == 0:
		return fmt.Errorf("%w: that of %s is drained", ErrOwn, k)
	case errors.Is(n.err, errReplaced):
		return fmt.Errorf("%w: that of %s: %w", ErrOwn, k, n.err) // a pod may have a port of before for long
	}
	p.store.know(k)
	n.last = now
	if _, again := n.waiting[identityOf(h)]; !again {
		n.meter.count(now)
	}
	return nil
}

// served ends the wait of a pod.
func (p *Pools) served(k Key, h Holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.Metrics.took(hit)
	delete(p.need(k).waiting, identityOf(h))
	p.bell.ring()
}

// missed begins the wait of a pod, and returns why.
func (p *Pools) missed(k Key, h Holder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.need(k)
	if _, again := n.waiting[identityOf(h)]; !again {
		p.cfg.Metrics.took(miss)
	}
	n.waiting[identityOf(h)] = time.Now()
	p.store.know(k) // it may have been dropped since
	p.bell.ring()
	if n.err != nil && (!p.cfg.Scarce(n.err) || !p.store.of(k).unused()) {
		return fmt.Errorf("%w in the pool of %s, and none can be made now: %w", ErrEmpty, k, n.err)
	}
	return fmt.Errorf("%w in the pool of %s: ports are being made", ErrEmpty, k)
}

// Free takes the port of a holder back; the port rests before another pod gets it. It returns
// the port; ok is false if the holder has none. Errors: fault.ErrUnavailable.
func (p *Pools) Free(ctx context.Context, h Holder) (freed Port, ok bool, err error) {
	p.mu.Lock()
	for _, n := range p.needs {
		delete(n.waiting, identityOf(h))
	}
	p.mu.Unlock()
	e, at, ok := p.store.placeOf(h)
	if !ok {
		return Port{}, false, nil
	}
	p.records.release(h)
	var was Port // not read if the change takes effect later
	err = p.store.do(ctx, e.key, at.Pool, func(s *v1alpha1.PortPoolSpec) bool {
		n := heldBy(s.Ports, h)
		if n < 0 {
			return false // another process freed it
		}
		was = s.Ports[n].PortPoolPort
		s.Ports = move(s.Ports, n, cooling)
		return true
	})
	if err != nil {
		return Port{}, false, err
	}
	return was, true, nil
}

// Confirm reads from the API server whether a holder still has a port.
func (p *Pools) Confirm(ctx context.Context, h Holder) (Held, bool, error) {
	_, at, ok := p.store.placeOf(h)
	if !ok {
		return Held{}, false, nil
	}
	if err := p.store.refresh(ctx, at.Pool); err != nil {
		return Held{}, false, err
	}
	return p.Of(h)
}

// Close frees the pools of a network, before the network is removed: ready ports are deleted
// and none is made. It returns the number of ports that are left.
func (p *Pools) Close(network string) (left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.store.all() {
		if r := e.resolved(); r != nil && r.ID == network {
			p.need(e.key).closed = true
			left += len(e.slots())
		}
	}
	p.bell.ring()
	return left
}
