package network

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrDeleted says that the runtime has ended a sandbox: its DEL came.
var ErrDeleted = errors.New("sandbox was deleted")

const (
	// tombstoneAge is for how long the ADD of a deleted sandbox is refused. A
	// runtime that gave up an ADD sends the DEL within milliseconds; what comes
	// later was held up in a queue.
	tombstoneAge = 10 * time.Minute
	// maxTombstones bounds the memory, to less than a megabyte, when more than 25
	// DELs a second come for all that time.
	maxTombstones = 1 << 14
)

// Manager lets operations on one sandbox run one after the other, in the order
// in which they came, and those on different sandboxes side by side. A DEL
// cancels the ADDs that came before it, waits for the undo, and leaves a tombstone
// that refuses every later ADD of that sandbox.
//
// Interfaces that other plugins make are parts of a sandbox. Operations on parts
// run side by side, and a part can be had again after its DEL, as long as none of
// the sandbox came.
//
// Its locks are taken in this order: the gate, which ADDs and DELs share and
// GC has alone; the sandbox; the identity of a pod whose addresses are kept for
// its successor. Waiting for any of them ends with the caller's context.
type Manager struct {
	plugin  Plugin
	metrics *metrics
	made    time.Time
	begun   atomic.Bool

	mu     sync.Mutex
	gate   gate
	turns  map[key]*turns
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

// grave is a deleted sandbox: half of the SHA-256 of its container ID. Ten thousand
// IDs, each allocated amid what a pod needed for a moment, would keep most of that
// memory from going back to the system.
type grave [sha256.Size / 2]byte

func graveOf(containerID string) grave {
	sum := sha256.Sum256([]byte(containerID))
	return grave(sum[:])
}

type tombstone struct {
	of grave
	at uint32 // in seconds since the Manager was made
}

// turns is the queue for one key. Whoever waits is counted before it waits, so
// the entry cannot be dropped and made anew under it.
type turns struct {
	users   int
	busy    bool
	waiting []chan struct{}
}

// adding is an ADD that a DEL may end.
type adding struct{ cancel context.CancelCauseFunc }

// NewManager returns the manager of a plugin. Metrics are kept in r, nil keeps
// none; kubelet says whether they are kept under the kubelet's names of old too.
func NewManager(p Plugin, r prometheus.Registerer, kubelet bool) (*Manager, error) {
	metrics, err := newMetrics(r, kubelet)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return &Manager{
		plugin: p, metrics: metrics, made: time.Now(), turns: map[key]*turns{},
		adds: map[key]map[*adding]struct{}{}, buried: map[grave]struct{}{}, gate: gate{idle: map[*idler]struct{}{}},
	}, nil
}

// Add runs fn alone on a sandbox. Its ctx ends with cause ErrDeleted when a DEL
// of the sandbox comes, and fn is expected to undo what it did. The ADD of a
// sandbox that was deleted is ErrDeleted.
func (m *Manager) Add(ctx context.Context, containerID string, fn func(context.Context) error) error {
	return m.add(ctx, containerID, containerID, fn)
}

// AddPart is Add of one part of a sandbox, by a name that no other part of any
// sandbox has, nor any sandbox. Its ctx ends when DelPart comes.
func (m *Manager) AddPart(ctx context.Context, containerID, part string, fn func(context.Context) error) error {
	return m.add(ctx, containerID, part, fn)
}

func (m *Manager) add(ctx context.Context, containerID, name string, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer m.begin(key{lockSandbox, name}, &adding{cancel})()
	for {
		err := m.attempt(ctx, containerID, name, fn)
		if !errors.Is(err, errRoom) {
			return err
		}
	}
}

// attempt is an Add up to its end or to where it makes room for others.
func (m *Manager) attempt(ctx context.Context, containerID, name string, fn func(context.Context) error) error {
	start := time.Now()
	if err := m.share(ctx); err != nil {
		return err
	}
	defer m.unshare()
	start = observe(m.metrics.add.gate, start)
	return m.run(ctx, key{lockSandbox, name}, func() error {
		observe(m.metrics.add.sandbox, start)
		if _, dead := m.buried[graveOf(containerID)]; dead {
			return fmt.Errorf("sandbox %s: %w", containerID, ErrDeleted)
		}
		return nil
	}, fn)
}

// begin lets a DEL end an ADD, until end is called.
func (m *Manager) begin(k key, a *adding) (end func()) {
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

// Del runs fn alone on a sandbox, after the ADDs that it cancels.
func (m *Manager) Del(ctx context.Context, containerID string, fn func(context.Context) error) error {
	m.mu.Lock()
	m.bury(containerID)
	m.mu.Unlock()
	return m.del(ctx, containerID, fn)
}

// DelPart is Del of one part of a sandbox.
func (m *Manager) DelPart(ctx context.Context, part string, fn func(context.Context) error) error {
	return m.del(ctx, part, fn)
}

func (m *Manager) del(ctx context.Context, name string, fn func(context.Context) error) error {
	m.mu.Lock()
	for a := range m.adds[key{lockSandbox, name}] {
		a.cancel(fmt.Errorf("sandbox %s: %w", name, ErrDeleted))
	}
	m.mu.Unlock()
	// The gate comes second: a GC before it may wait for that very ADD.
	start := time.Now()
	if err := m.share(ctx); err != nil {
		return err
	}
	defer m.unshare()
	start = observe(m.metrics.del.gate, start)
	return m.run(ctx, key{lockSandbox, name}, func() error {
		observe(m.metrics.del.sandbox, start)
		return nil
	}, fn)
}

// Do runs fn alone on a sandbox. It does not share the gate, so that Alone's fn
// may call it.
func (m *Manager) Do(ctx context.Context, containerID string, fn func(context.Context) error) error {
	return m.run(ctx, key{lockSandbox, containerID}, nil, fn)
}

// Identity runs fn alone on an identity: the name of a claim, under which
// addresses pass from a pod to its successor. It is called within Add, and its
// fn must not wait for an ADD. The empty name is nobody's, and is not waited
// for.
func (m *Manager) Identity(ctx context.Context, name string, fn func(context.Context) error) error {
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
func (m *Manager) run(ctx context.Context, k key, admit func() error, fn func(context.Context) error) error {
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
func (m *Manager) take(ctx context.Context, k key) (*turns, error) {
	m.mu.Lock()
	t := m.turns[k]
	if t == nil {
		t = &turns{}
		m.turns[k] = t
	}
	t.users++
	if !t.busy {
		t.busy = true
		m.mu.Unlock()
		return t, nil
	}
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	m.mu.Unlock()

	select {
	case <-turn:
		return t, nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	for i, w := range t.waiting {
		if w == turn {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			m.drop(k, t)
			m.mu.Unlock()
			return nil, waited(ctx, k)
		}
	}
	m.mu.Unlock()
	// The turn came in the same moment: it has to be passed on.
	m.pass(k, t)
	return nil, waited(ctx, k)
}

// waited says what was waited for in vain.
func waited(ctx context.Context, k key) error {
	return fmt.Errorf("waiting for the operation before on %s %s: %w", k.kind, k.name, context.Cause(ctx))
}

// pass ends this caller's turn and begins the next one's.
func (m *Manager) pass(k key, t *turns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(t.waiting) > 0 {
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	} else {
		t.busy = false
	}
	m.drop(k, t)
}

// drop forgets a user of an entry, and the entry with its last one.
func (m *Manager) drop(k key, t *turns) {
	if t.users--; t.users == 0 {
		delete(m.turns, k)
	}
}

// bury leaves a tombstone and forgets those that are old.
func (m *Manager) bury(containerID string) {
	now, of := uint32(time.Since(m.made)/time.Second), graveOf(containerID)
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
