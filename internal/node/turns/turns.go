package turns

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// ErrDeleted says that the runtime has ended a sandbox: its DEL came.
var ErrDeleted = errors.New("sandbox was deleted")

const (
	// tombstoneAge is for how long the ADD of a deleted sandbox is refused. A
	// runtime that gave up an ADD sends the DEL within milliseconds; what comes
	// later was held up in a queue.
	tombstoneAge = 10 * time.Minute
	// maxTombstones bounds the memory, to less than a megabyte, when more than 13
	// sandboxes a second end for all that time: each leaves two.
	maxTombstones = 1 << 14
)

// Turns lets operations on one sandbox run one after the other, in the order
// in which they came, and those on different sandboxes side by side. A DEL
// cancels the ADDs of its attachment, a container ID with a CNI_IFNAME, that came
// before it, waits for the undo, and leaves a tombstone that refuses every later ADD
// of that attachment. The ADDs of another name are not concerned.
//
// An interface that another plugin makes may be unplugged and plugged again, until the
// sandbox has ended.
//
// Its locks are taken in this order: the gate, which ADDs and DELs share and
// GC has alone; the sandbox; the identity of a pod whose addresses are kept for
// its successor. Waiting for any of them ends with the caller's context.
type Turns struct {
	metrics *metrics
	made    time.Time

	mu     sync.Mutex
	gate   gate
	queues map[key]*queue
	adds   map[key]map[*adding]struct{} // that run or wait
	buried map[grave]struct{}
	order  []tombstone // by age, for forgetting
}

// key names what is done one after the other. A pod's name is none: orphans
// have no name, and would all share one.
type key struct {
	kind lockKind
	name string
}

// lockKind is what a caller waits for.
type lockKind string

const (
	lockSandbox  lockKind = "sandbox"
	lockIdentity lockKind = "identity"
)

// grave is a deleted attachment, or a sandbox that has ended: half of the SHA-256 of
// its names. Ten thousand IDs, each allocated amid what a pod needed for a moment,
// would keep most of that memory from going back to the system.
type grave [sha256.Size / 2]byte

// graveOf is that of a sandbox where ifName is empty.
func graveOf(containerID, ifName string) grave {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifName))
	return grave(sum[:])
}

type tombstone struct {
	of grave
	at uint32 // in seconds since the Turns were made
}

// queue is of one key. Whoever waits is counted before it waits, so
// the entry cannot be dropped and made anew under it.
type queue struct {
	users int
	one   *semaphore.Weighted
}

// adding is an ADD that a DEL of the same interface may end.
type adding struct {
	ifName string
	cancel context.CancelCauseFunc
}

// New returns turns that nobody has. Its metrics are kept in r; nil keeps none.
func New(r prometheus.Registerer) (*Turns, error) {
	metrics, err := newMetrics(r)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return &Turns{
		metrics: metrics, made: time.Now(), queues: map[key]*queue{},
		adds: map[key]map[*adding]struct{}{}, buried: map[grave]struct{}{}, gate: newGate(),
	}, nil
}

// Add runs fn alone on a sandbox, for the interface that the runtime calls ifName.
// Its ctx ends with cause ErrDeleted when a DEL of that interface comes, and fn is
// expected to undo what it did. The ADD of one that was deleted is ErrDeleted, and
// any ADD of a sandbox that has ended.
func (m *Turns) Add(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := key{lockSandbox, containerID}
	defer m.begin(k, &adding{ifName, cancel})()
	for {
		err := m.attempt(ctx, k, ifName, fn)
		if !errors.Is(err, errRoom) {
			return err
		}
	}
}

// attempt is an Add up to its end or to where it makes room for others.
func (m *Turns) attempt(ctx context.Context, k key, ifName string, fn func(context.Context) error) error {
	start := time.Now()
	if err := m.share(ctx); err != nil {
		return err
	}
	defer m.unshare()
	start = observe(m.metrics.add.gate, start)
	return m.run(ctx, k, func() error {
		observe(m.metrics.add.sandbox, start)
		for _, g := range []grave{graveOf(k.name, ""), graveOf(k.name, ifName)} {
			if _, dead := m.buried[g]; dead {
				return fmt.Errorf("sandbox %s: %w", k.name, ErrDeleted)
			}
		}
		return nil
	}, fn)
}

// begin lets a DEL end an ADD, until end is called.
func (m *Turns) begin(k key, a *adding) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adds[k] == nil {
		m.adds[k] = map[*adding]struct{}{}
	}
	m.adds[k][a] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.adds[k], a); len(m.adds[k]) == 0 {
			delete(m.adds, k)
		}
	}
}

// Del runs fn alone on a sandbox, after the ADDs that it cancels: those of the same
// interface. Without an interface it is of all that the sandbox has.
func (m *Turns) Del(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	m.mu.Lock()
	m.bury(graveOf(containerID, ifName))
	m.mu.Unlock()
	return m.Unplug(ctx, containerID, ifName, fn)
}

// End has every later ADD of a sandbox refused, whatever its interface.
func (m *Turns) End(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bury(graveOf(containerID, ""))
}

// Unplug is Del of an interface that may be plugged again: it leaves no tombstone.
func (m *Turns) Unplug(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	k := key{lockSandbox, containerID}
	m.mu.Lock()
	for a := range m.adds[k] {
		if ifName == "" || a.ifName == ifName {
			a.cancel(fmt.Errorf("sandbox %s: %w", k.name, ErrDeleted))
		}
	}
	m.mu.Unlock()
	// The gate comes second: a GC before it may wait for that very ADD.
	start := time.Now()
	if err := m.share(ctx); err != nil {
		return err
	}
	defer m.unshare()
	start = observe(m.metrics.del.gate, start)
	return m.run(ctx, k, func() error {
		observe(m.metrics.del.sandbox, start)
		return nil
	}, fn)
}

// Do runs fn alone on a sandbox. It does not share the gate, so that Alone's fn
// may call it.
func (m *Turns) Do(ctx context.Context, containerID string, fn func(context.Context) error) error {
	return m.run(ctx, key{lockSandbox, containerID}, nil, fn)
}

// Identity runs fn alone on an identity: the name of a claim, under which
// addresses pass from a pod to its successor. It is called within Add, and its
// fn must not wait for an ADD. The empty name is nobody's, and is not waited
// for.
func (m *Turns) Identity(ctx context.Context, name string, fn func(context.Context) error) error {
	if name == "" {
		return fn(ctx)
	}
	start := time.Now()
	return m.run(ctx, key{lockIdentity, name}, func() error {
		observe(m.metrics.identity, start)
		return nil
	}, fn)
}

// run waits for its turn, asks admit (under the lock) and runs fn.
func (m *Turns) run(ctx context.Context, k key, admit func() error, fn func(context.Context) error) error {
	t, err := m.take(ctx, k)
	if err != nil {
		return err
	}
	defer m.pass(k, t)
	if admit != nil {
		m.mu.Lock()
		err := admit()
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return fn(ctx)
}

// take waits for this caller's turn.
func (m *Turns) take(ctx context.Context, k key) (*queue, error) {
	m.mu.Lock()
	t := m.queues[k]
	if t == nil {
		t = &queue{one: semaphore.NewWeighted(1)}
		m.queues[k] = t
	}
	t.users++
	m.mu.Unlock()
	if t.one.Acquire(ctx, 1) != nil {
		m.drop(k, t)
		return nil, fmt.Errorf("waiting for the operation before on %s %s: %w", k.kind, k.name, context.Cause(ctx))
	}
	return t, nil
}

// pass ends this caller's turn and begins the next one's.
func (m *Turns) pass(k key, t *queue) {
	t.one.Release(1)
	m.drop(k, t)
}

// drop forgets a user of an entry, and the entry with its last one.
func (m *Turns) drop(k key, t *queue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(m.queues, k)
	}
}

// bury leaves a tombstone and forgets those that are old.
func (m *Turns) bury(of grave) {
	now := uint32(time.Since(m.made) / time.Second)
	if _, dead := m.buried[of]; !dead {
		m.order = append(m.order, tombstone{of, now})
		m.buried[of] = struct{}{}
	}
	for len(m.order) > 0 {
		first := m.order[0]
		if len(m.order) <= maxTombstones && now-first.at < uint32(tombstoneAge/time.Second) {
			return
		}
		m.order = m.order[1:]
		delete(m.buried, first.of)
	}
}
