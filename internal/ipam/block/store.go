// Package block stores which addresses are taken. The store is a set of IPBlock
// objects, which it changes by compare-and-swap only.
//
// Changes of a block that arrive during a write share the next write (group commit). A
// storm of a thousand allocations is a few dozen writes. If another writer was faster,
// the store applies the changes to the newer state and writes again: "take any" and
// "free mine" commute. If the outcome of a write is unknown, the store first reads the
// block.
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
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/keyed"
)

// ErrStopped means that Run has ended. The store's other errors are those of package fault: the
// text of fault.ErrConflict names the holder.
var ErrStopped = fmt.Errorf("%w: the address store is stopped", fault.ErrUnavailable)

// Client writes and reads IPBlocks without a cache.
type Client interface {
	// Create fails with AlreadyExists if the block exists.
	Create(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error)
	// Update fails with Conflict if the resourceVersion of b is not the current one.
	Update(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error)
	// Get reads the last committed state.
	Get(ctx context.Context, name string) (*v1alpha1.IPBlock, error)
	// Delete deletes the block if it still has the UID and resourceVersion of b, and
	// fails with Conflict otherwise.
	Delete(ctx context.Context, b *v1alpha1.IPBlock) error
}

// Config of a Store. The zero value is usable.
type Config struct {
	// Now is the wall clock of the times in slots; default time.Now.
	Now func() time.Time
	// Run returns how long the process has run, by a clock that never jumps. Cooldowns
	// and all other durations are measured by it. Default: the time since New.
	Run func() time.Duration
	// FreeLinger is how long a free waits for other operations on its block, to share
	// their write. A take on the block ends the wait. Zero means 200 ms, a negative
	// value no wait.
	FreeLinger time.Duration
	// Turn waits until the store may call the API, or until ctx ends, and returns a
	// function that ends the turn. Operations that arrive during the wait share the
	// call. If Turn is nil, calls do not wait.
	Turn func(ctx context.Context) (done func())
}

// Request asks for the addresses of one interface.
type Request struct {
	// Holder gets the addresses. The addresses of a PerNode pool come from the blocks
	// of Holder.Node.
	Holder ipam.Holder
	// Addresses are requested addresses, at most one per family of the pool. A family
	// without one gets any address.
	Addresses []netip.Addr
	// Claim is the key of a claim; empty for none. When the holder gives its addresses
	// back, they are held for the claim, and the next holder with the claim gets them.
	// PerNode pools serve no claims.
	Claim string
	// Beside are pods that may share their address of the claim with the holder: the other
	// launchers of its virtual machine, which migrates to it. The holder gets the same
	// address, if only one pod has it.
	Beside []ipam.Holder
	// Now returns the pool without the addresses that are reserved at this moment. If a
	// chosen address is reserved before it is written, the take chooses another. Now is
	// called with the store's lock held. Nil if the pool never has reservations.
	Now func() *ipam.Pool
}

// Lease is one address that has a holder or is held for a claim.
type Lease struct {
	// Holder is zero while the address is held.
	Holder ipam.Holder
	Domain string
	Addr   netip.Addr
	// Block is the name of the IPBlock.
	Block string
	// Since is when the address was taken or held.
	Since time.Time
	// Claim is the key of the address's claim; empty for none.
	Claim string
	// Seen is when this process first saw the address held, by the clock that does not
	// jump. It is meaningless for a taken address.
	Seen time.Time
}

// holderKey is the identity of a holder, the fields that ipam.Holder.Same compares.
type holderKey struct{ uid, iface, namespace, pod string }

func keyOf(h ipam.Holder) holderKey { return holderKey{h.PodUID, h.Interface, h.Namespace, h.Pod} }

// claimKey is the key that serializes the takes of one claim. It equals no holder's
// key: a holder's UID is not empty.
func claimKey(claim string) holderKey { return holderKey{iface: claim} }

// Store hands out addresses and takes them back. It is safe for concurrent use. Several
// stores on one API never hand out the same address twice.
type Store struct {
	c   Client
	cfg Config
	// owners serializes the operations of each holder and of each claim.
	owners keyed.Gates[holderKey]
	// txns counts the takes and frees under way.
	txns sync.WaitGroup
	// wake has an element while todo is not empty.
	wake chan struct{}

	// mu guards all that follows.
	mu        sync.Mutex
	known     *known
	placement *placement
	todo      []*entry
	started   bool
	stopped   bool
}

// New returns a store. Take and Free wait until Run is called.
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
	k := &known{
		wall: cfg.Now, run: cfg.Run, begin: time.Now().Add(-cfg.Run()),
		blocks:      map[string]*entry{},
		byNode:      map[string]map[string]*entry{},
		leases:      map[holderKey][]Lease{},
		claims:      map[string][]Lease{},
		tenants:     map[tenant]map[netip.Addr]string{},
		doubts:      map[holderKey]*entry{},
		cooldowns:   map[string]time.Duration{},
		buried:      map[string]types.UID{},
		formerNodes: map[string]formerNode{},
		pending:     map[*entry]pendingState{},
	}
	return &Store{c: c, cfg: cfg, wake: make(chan struct{}, 1), known: k, placement: &placement{known: k, last: map[place]string{}}}
}

// Run writes the changes of Take and Free until ctx ends, then returns nil. Before it
// returns, unfinished operations fail with ErrStopped. A second call of Run returns an
// error.
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
			committers.Go(func() { (&committer{s: s, e: e}).run(ctx) })
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		}
	}
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.todo {
		(&committer{s: s, e: e}).fail(ErrStopped)
		e.busy = false
	}
	s.todo = nil
	s.mu.Unlock()
	committers.Wait()
	s.txns.Wait()
	return nil
}

// start makes Run start a committer for the block if it has none.
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

// Observe takes an object that an informer added or updated. A state older than the
// known one is ignored.
func (s *Store) Observe(obj *v1alpha1.IPBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid, ok := s.known.buried[obj.Name]; ok && uid == obj.UID {
		return
	}
	e := s.known.blocks[obj.Name]
	if e == nil {
		prefix, ok := prefixOf(obj)
		if !ok {
			// The name does not match the content: no address is ever taken from the
			// block.
			return
		}
		e = s.known.add(obj.Spec.Domain, prefix, obj.Spec.Node)
	}
	switch {
	case e.obj != nil && !newer(obj, e.obj):
	case e.busy:
		if u := s.known.pending[e]; u.obj == nil || newer(obj, u.obj) {
			s.known.pending[e] = pendingState{obj, s.known.read(e, obj)}
		}
	default:
		s.known.learn(e, obj)
	}
}

// Forget takes the last state of an object that an informer reports as deleted.
func (s *Store) Forget(obj *v1alpha1.IPBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.buried[obj.Name] == obj.UID {
		delete(s.known.buried, obj.Name)
	}
	e := s.known.blocks[obj.Name]
	if e == nil || e.obj == nil || e.obj.UID != obj.UID {
		return
	}
	if e.busy {
		e.gone = obj.UID // the committer finds out by itself
		return
	}
	if newer(obj, e.obj) {
		s.known.learn(e, obj)
	}
	s.known.noteFormerNode(e.name, obj.Spec.Node)
	s.known.objectGone(e)
	s.known.forgetEmpty(e)
}
