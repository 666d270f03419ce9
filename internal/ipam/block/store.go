// Package block stores which addresses are taken, in IPBlock objects that are
// changed by compare-and-swap only.
//
// Changes of one block that arrive while a write is under way ride together on
// the next one (group commit), so that a storm of a thousand allocations is a
// few dozen writes. A write that lost a race is repeated on the newer state:
// "take any" and "free mine" commute. After a write whose outcome is not known
// the block is read before anything else is done with it.
package block

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// What the store's methods fail with, wrapped with %w.
var (
	// ErrInvalid says that the request cannot succeed until it is changed.
	ErrInvalid = errors.New("invalid request")
	// ErrExhausted says that no address is left now; the text has the counts.
	ErrExhausted = errors.New("address pool exhausted")
	// ErrConflict says that a requested address cannot be had; the text names
	// the holder.
	ErrConflict = errors.New("address conflict")
	// ErrUnavailable says that the API did not answer, or its answer is not
	// known: repeat the call. What it did is found again by the repetition.
	ErrUnavailable = errors.New("address store unavailable")
	// ErrStopped says that Run has ended. It is an ErrUnavailable.
	ErrStopped = fmt.Errorf("%w: stopped", ErrUnavailable)
)

// Client writes and reads IPBlocks without a cache.
type Client interface {
	// Create fails with AlreadyExists when somebody was faster.
	Create(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error)
	// Update fails with Conflict when the resourceVersion is not the last one.
	Update(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error)
	// Get reads the last committed state.
	Get(ctx context.Context, name string) (*v1alpha1.IPBlock, error)
	// Delete has UID and resourceVersion as preconditions.
	Delete(ctx context.Context, b *v1alpha1.IPBlock) error
}

// Config of a Store. The zero value is usable.
type Config struct {
	// Now is the wall clock that is written down in slots; time.Now when nil.
	Now func() time.Time
	// Run measures cooldowns and all other durations: how long the process has run,
	// by a clock that never jumps. The time since New when nil.
	Run func() time.Duration
	// FreeLinger is how long a free waits for company; 200 ms when zero, not
	// at all when negative. A take on the same block carries it at once.
	FreeLinger time.Duration
	// Turn waits until a call to the API may be made, or ctx ends, and returns what
	// ends the turn. What is asked for meanwhile rides on the call, so a long wait
	// makes few of them. No call waits when it is nil.
	Turn func(ctx context.Context) (done func())
	// OnCall, when set, is told of every call to the API after it returned.
	// It must not block.
	OnCall func(Call)
}

// Call describes one call to the API, for metrics.
type Call struct {
	// Verb is create, update, get or delete.
	Verb string
	// Ops is how many takes and frees the call carried.
	Ops int
	// Took is how long the call lasted.
	Took time.Duration
	// Err is the client's error.
	Err error
}

// Request asks for the addresses of one interface.
type Request struct {
	// Holder gets the addresses. With a PerNode pool they come from the
	// blocks of Holder.Node.
	Holder ipam.Holder
	// Addresses that are wanted, at most one per family of the pool; the
	// other families get any.
	Addresses []netip.Addr
	// Claim is the key under which the addresses are held when the holder has
	// given them back, and by which the next holder gets them. Empty for none.
	// A pool with PerNode placement serves no claims.
	Claim string
	// Now returns the pool without what is reserved at that moment: an address
	// that was chosen and is still waiting to be written is given up for another
	// when it has been reserved since. It is called with the store's lock held. Nil
	// for a pool of which nothing is ever reserved.
	Now func() *ipam.Pool
}

// Lease is one address that has a holder, or is held for a claim.
type Lease struct {
	// Holder is zero while the address is held.
	Holder ipam.Holder
	Domain string
	Addr   netip.Addr
	// Block is the name of the IPBlock.
	Block string
	// Since it was taken or held.
	Since time.Time
	// Claim of the address; empty for most.
	Claim string
	// Seen is from when this process has seen it be held, by the clock that does not
	// jump; of one that is taken it says nothing.
	Seen time.Time
}

// holderKey is the identity of a holder, as ipam.Holder.Same compares it.
type holderKey struct{ uid, iface, namespace, pod string }

func keyOf(h ipam.Holder) holderKey { return holderKey{h.PodUID, h.Interface, h.Namespace, h.Pod} }

// claimKey serializes takes of one claim. No holder has an empty UID.
func claimKey(claim string) holderKey { return holderKey{iface: claim} }

// tenant is a namespace's part of a domain.
type tenant struct{ namespace, domain string }

// place remembers from which block a node was last served.
type place struct {
	pool, node string
	family     ipam.Family
}

// maxPlaces bounds the memory of places, which is only a preference.
const maxPlaces = 1 << 14

// Store hands out addresses and takes them back. It is safe for concurrent
// use. Several stores on one API never hand out one address twice.
type Store struct {
	c      Client
	cfg    Config
	owners owners
	// txns are the takes and frees under way.
	txns sync.WaitGroup
	// wake tells Run that todo is not empty.
	wake chan struct{}
	// alarm has an element when there is a loss that nobody has asked for.
	alarm chan struct{}

	mu     sync.Mutex
	blocks map[string]*entry
	// byNode has the blocks that are routed to a node, by name.
	byNode map[string]map[string]*entry
	// leases are what the known blocks say is taken.
	leases map[holderKey][]Lease
	// claims are what they say is taken or held for a claim, by its key.
	claims map[string][]Lease
	// tenants has what is taken or held by the namespace that it counts for in quotas,
	// with the claim that an address without a holder is held for.
	tenants map[tenant]map[netip.Addr]string
	// doubts has the block whose last write may have given an address to a
	// holder that was told of a failure.
	doubts map[holderKey]*entry
	last   map[place]string
	// rest is the longest cooldown of a domain's pools that was seen.
	rest map[string]time.Duration
	// left are the nodes that blocks were routed to until a moment ago, by the name
	// of the block.
	left map[string]departed
	// buried are blocks that this store deleted and the informer may not have
	// seen go.
	buried map[string]types.UID
	// unread are the newest states that the informer brought of blocks while
	// they were busy.
	unread map[*entry]unread
	// guards says that losses are looked for, losing are the blocks with some.
	guards bool
	losing map[*entry]struct{}
	// begin is when the process began, with its clock that does not jump.
	begin   time.Time
	todo    []*entry
	started bool
	stopped bool
}

// New returns a store. Take and Free wait until Run serves them.
func New(c Client, cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Run == nil {
		begin := time.Now()
		cfg.Run = func() time.Duration { return time.Since(begin) }
	}
	if cfg.FreeLinger == 0 {
		cfg.FreeLinger = 200 * time.Millisecond
	}
	if cfg.Turn == nil {
		cfg.Turn = func(context.Context) func() { return func() {} }
	}
	return &Store{
		c: c, cfg: cfg, begin: time.Now().Add(-cfg.Run()),
		owners:  owners{m: map[holderKey]*owner{}},
		wake:    make(chan struct{}, 1),
		alarm:   make(chan struct{}, 1),
		blocks:  map[string]*entry{},
		byNode:  map[string]map[string]*entry{},
		leases:  map[holderKey][]Lease{},
		claims:  map[string][]Lease{},
		tenants: map[tenant]map[netip.Addr]string{},
		doubts:  map[holderKey]*entry{},
		last:    map[place]string{},
		rest:    map[string]time.Duration{},
		buried:  map[string]types.UID{},
		losing:  map[*entry]struct{}{},
		left:    map[string]departed{},
		unread:  map[*entry]unread{},
	}
}

// Run writes what Take and Free ask for until ctx ends, then returns nil. What
// was under way has failed with ErrStopped by then. It can run once.
func (s *Store) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.started
	s.started = true
	s.mu.Unlock()
	if again {
		return errors.New("the address store can run only once")
	}
	var committers sync.WaitGroup
	for ctx.Err() == nil {
		s.mu.Lock()
		todo := s.todo
		s.todo = nil
		s.mu.Unlock()
		for _, e := range todo {
			committers.Go(func() { s.commit(ctx, e) })
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		}
	}
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.todo {
		s.fail(e, ErrStopped)
		e.busy = false
	}
	s.todo = nil
	s.mu.Unlock()
	committers.Wait()
	s.txns.Wait()
	return nil
}

// now is the present by both clocks of the process.
func (s *Store) now() ipam.Moment { return ipam.Moment{Wall: s.cfg.Now(), Run: s.cfg.Run()} }

// fresh is a block of which nothing was ever used, as far as is known.
func (s *Store) fresh(prefix netip.Prefix, node string) *ipam.Block {
	b := ipam.NewBlock(prefix, node)
	b.Watch(nil, s.now())
	return b
}

// start makes Run start a committer for the block unless it has one.
func (s *Store) start(e *entry) {
	if e.busy {
		return
	}
	e.busy = true
	s.todo = append(s.todo, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Observe feeds the store from an informer: what was added or updated. What is
// older than what the store knows changes nothing.
func (s *Store) Observe(obj *v1alpha1.IPBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid, ok := s.buried[obj.Name]; ok && uid == obj.UID {
		return
	}
	e := s.blocks[obj.Name]
	if e == nil {
		prefix, ok := prefixOf(obj)
		if !ok {
			// A block under a wrong name: nothing is ever taken from it.
			return
		}
		e = s.add(obj.Spec.Domain, prefix, obj.Spec.Node)
	}
	switch {
	case e.obj != nil && !newer(obj, e.obj):
	case e.busy:
		if u := s.unread[e]; u.obj == nil || newer(obj, u.obj) {
			s.unread[e] = unread{obj, s.read(e, obj)}
		}
	default:
		s.learn(e, obj)
	}
}

// unread is a state, and what it says.
type unread struct {
	obj   *v1alpha1.IPBlock
	block *ipam.Block
}

// Forget feeds the store from an informer: what was deleted, in its last known
// state.
func (s *Store) Forget(obj *v1alpha1.IPBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buried[obj.Name] == obj.UID {
		delete(s.buried, obj.Name)
	}
	e := s.blocks[obj.Name]
	if e == nil || e.obj == nil || e.obj.UID != obj.UID {
		return
	}
	if e.busy {
		e.gone = obj.UID // a committer finds out by itself
		return
	}
	if newer(obj, e.obj) {
		s.learn(e, obj)
	}
	s.leave(e.name, obj.Spec.Node)
	s.lose(e)
	s.sweep(e)
}

// prefixOf returns the addresses of an object, if its name, domain and CIDR
// agree.
func prefixOf(obj *v1alpha1.IPBlock) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(obj.Spec.CIDR)
	ok := err == nil && ipam.BlockOf(p.Addr()) == p && ipam.BlockName(obj.Spec.Domain, p) == obj.Name
	return p, ok
}

// newer says whether a is a later state than b. Resource versions are decimal
// numbers of any length that grow over all objects of a kind.
func newer(a, b *v1alpha1.IPBlock) bool {
	x, y := a.ResourceVersion, b.ResourceVersion
	if len(x) != len(y) {
		return len(x) > len(y)
	}
	return x > y
}
