package locks

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"fairlead.dev/fairlead/internal/keyed"
)

// ErrDeleted means that the runtime has sent a DEL for the sandbox.
var ErrDeleted = errors.New("sandbox was deleted")

const (
	// tombstoneAge is the time during which ADDs of a deleted sandbox are refused. Such
	// an ADD was delayed in a queue: a runtime that gives up an ADD sends its DEL within
	// milliseconds.
	tombstoneAge = 10 * time.Minute
	// maxTombstones limits the memory to less than a megabyte. It is reached if more
	// than 13 sandboxes a second end for ten minutes: each leaves two tombstones.
	maxTombstones = 1 << 14
)

// Locks runs operations on one sandbox one after the other, in order of arrival, and
// operations on different sandboxes in parallel. An attachment is a container ID with a
// CNI_IFNAME. A DEL cancels the earlier ADDs of its attachment, waits for their undo, and
// leaves a tombstone: later ADDs of the attachment are refused. ADDs of other attachments
// go on.
//
// An interface that another plugin makes may be unplugged (Unplug) and plugged again
// until the sandbox has ended (End).
//
// Locks are taken in this order: the gate, which ADDs and DELs share and a GC holds
// alone; the sandbox; the identity of a pod whose addresses pass to its successor.
// Waiting for any of them ends with the caller's context.
type Locks struct {
	metrics *metrics
	made    time.Time

	gates keyed.Gates[key]

	mu    sync.Mutex
	gate  gate
	adds  map[key]map[*adding]struct{} // ADDs that run or wait
	dead  map[tombstoneKey]struct{}
	order []tombstone // the keys of dead, oldest first
}

// key names operations that run one after the other. The name of a pod is not
// a key: orphans have no name, and would all share one lock.
type key struct {
	kind lockKind
	name string
}

// lockKind is the kind of a key.
type lockKind string

const (
	lockSandbox  lockKind = "sandbox"
	lockIdentity lockKind = "identity"
)

// tombstoneKey stands for a deleted attachment, or for a sandbox that has ended. It is
// half of the SHA-256 of their names. The strings themselves were allocated among the
// short-lived memory of a pod: ten thousand of them would keep most of it from going
// back to the system.
type tombstoneKey [sha256.Size / 2]byte

// tombstoneKeyOf returns the key of an attachment, or of a sandbox if ifName is empty.
func tombstoneKeyOf(containerID, ifName string) tombstoneKey {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifName))
	return tombstoneKey(sum[:])
}

type tombstone struct {
	key tombstoneKey
	at  uint32 // in seconds since New
}

// adding is an ADD that runs or waits.
type adding struct {
	ifName string
	cancel context.CancelCauseFunc
}

// New returns Locks without operations. Metrics are registered in r, unless it is nil; the
// error is that of the registration.
func New(r prometheus.Registerer) (*Locks, error) {
	metrics, err := newMetrics(r)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return &Locks{
		metrics: metrics, made: time.Now(), adds: map[key]map[*adding]struct{}{}, dead: map[tombstoneKey]struct{}{}, gate: newGate(),
	}, nil
}

// Add runs fn as the only operation on a sandbox. ifName is the ADD's CNI_IFNAME. The
// context of fn ends with cause ErrDeleted when a DEL of the interface comes; fn must
// then undo its changes. Errors: ErrDeleted, without a call of fn, if the interface was
// deleted or the sandbox has ended; errors of fn; the cause of ctx if it ended first.
func (m *Locks) Add(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := key{lockSandbox, containerID}
	defer m.begin(k, &adding{ifName, cancel})()
	for {
		err := m.attempt(ctx, k, ifName, fn)
		if !errors.Is(err, errGCFirst) {
			return err
		}
		if err := m.makeWay(ctx); err != nil {
			return err
		}
	}
}

// attempt runs an Add to its end, or until it makes way for a GC (errGCFirst).
func (m *Locks) attempt(ctx context.Context, k key, ifName string, fn func(context.Context) error) error {
	start := time.Now()
	if err := m.share(ctx); err != nil {
		return err
	}
	leave := sync.OnceFunc(m.unshare)
	defer leave()
	ctx = context.WithValue(ctx, leaveKey{}, leave)
	start = observe(m.metrics.add.gate, start)
	return m.run(ctx, k, func() error {
		observe(m.metrics.add.sandbox, start)
		for _, key := range []tombstoneKey{tombstoneKeyOf(k.name, ""), tombstoneKeyOf(k.name, ifName)} {
			if _, dead := m.dead[key]; dead {
				return fmt.Errorf("sandbox %s: %w", k.name, ErrDeleted)
			}
		}
		return nil
	}, fn)
}

// begin registers an ADD so that a DEL can cancel it. end removes it.
func (m *Locks) begin(k key, a *adding) (end func()) {
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

// Del runs fn as the only operation on a sandbox, after the earlier ADDs of the interface,
// which it cancels. Later ADDs of the interface fail with ErrDeleted. An empty ifName
// stands for all interfaces of the sandbox.
func (m *Locks) Del(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	m.mu.Lock()
	m.bury(tombstoneKeyOf(containerID, ifName))
	m.mu.Unlock()
	return m.Unplug(ctx, containerID, ifName, fn)
}

// End marks a sandbox as ended: every later ADD of any interface fails with ErrDeleted.
func (m *Locks) End(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bury(tombstoneKeyOf(containerID, ""))
}

// Unplug is Del without a tombstone, for an interface that may be plugged again.
func (m *Locks) Unplug(ctx context.Context, containerID, ifName string, fn func(context.Context) error) error {
	k := key{lockSandbox, containerID}
	m.mu.Lock()
	for a := range m.adds[k] {
		if ifName == "" || a.ifName == ifName {
			a.cancel(fmt.Errorf("sandbox %s: %w", k.name, ErrDeleted))
		}
	}
	m.mu.Unlock()
	// Cancel first, then wait at the gate: a GC that holds or awaits the gate may be
	// waiting for a cancelled ADD.
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

// Do runs fn as the only operation on a sandbox. It does not take the gate, so the fn of
// Alone may call it.
func (m *Locks) Do(ctx context.Context, containerID string, fn func(context.Context) error) error {
	return m.run(ctx, key{lockSandbox, containerID}, nil, fn)
}

// Identity runs fn as the only operation on an identity. name is that of a claim, by
// which addresses pass from a pod to its successor; if it is empty, fn runs at once. It is
// called within Add's fn, and its own fn must not wait for an ADD.
func (m *Locks) Identity(ctx context.Context, name string, fn func(context.Context) error) error {
	if name == "" {
		return fn(ctx)
	}
	start := time.Now()
	return m.run(ctx, key{lockIdentity, name}, func() error {
		observe(m.metrics.identity, start)
		return nil
	}, fn)
}

// run waits for the caller's turn and runs fn, unless admit returns an error. admit is
// called under the lock; it may be nil.
func (m *Locks) run(ctx context.Context, k key, admit func() error, fn func(context.Context) error) error {
	unlock, err := m.gates.Lock(ctx, k)
	if err != nil {
		return fmt.Errorf("waiting for the previous operation on %s %s: %w", k.kind, k.name, err)
	}
	defer unlock()
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

// bury adds a tombstone and removes old ones. The caller holds the lock.
func (m *Locks) bury(key tombstoneKey) {
	now := uint32(time.Since(m.made) / time.Second)
	if _, dead := m.dead[key]; !dead {
		m.order = append(m.order, tombstone{key, now})
		m.dead[key] = struct{}{}
	}
	for len(m.order) > 0 {
		first := m.order[0]
		if len(m.order) <= maxTombstones && now-first.at < uint32(tombstoneAge/time.Second) {
			return
		}
		m.order = m.order[1:]
		delete(m.dead, first.key)
	}
}

// gate is a lock that ADDs and DELs share and that a GC holds alone (CNI specification
// 1.1.0, "GC": no other operation at the same time). It is first come, first served, so
// GCs and other requests cannot starve each other.
type gate struct {
	slots   *semaphore.Weighted
	waiting int                 // number of GCs that wait
	entered chan struct{}       // is closed when a GC stops waiting
	idle    map[*idler]struct{} // ADDs that share the gate and only wait
}

// whole is the number of slots. A GC takes all of them, an ADD or DEL takes one.
const whole = math.MaxInt64

func newGate() gate {
	return gate{slots: semaphore.NewWeighted(whole), entered: make(chan struct{}), idle: map[*idler]struct{}{}}
}

// idler is an ADD that shares the gate and only waits.
type idler struct{ end context.CancelCauseFunc }

// errGCFirst ends the wait of an idle ADD for which a GC would have to wait.
var errGCFirst = errors.New("a GC comes first")

// Alone runs fn while no ADD and no DEL runs. It waits for those that run; later ones
// wait for it.
func (m *Locks) Alone(ctx context.Context, fn func(context.Context) error) error {
	m.mu.Lock()
	m.gate.waiting++
	for i := range m.gate.idle {
		i.end(errGCFirst)
	}
	m.mu.Unlock()
	err := m.enter(ctx, whole)
	m.mu.Lock()
	m.gate.waiting--
	close(m.gate.entered)
	m.gate.entered = make(chan struct{})
	m.mu.Unlock()
	if err != nil {
		return err
	}
	defer m.gate.slots.Release(whole)
	return fn(ctx)
}

// makeWay waits until a GC that waits holds the gate. Without it an ADD that makes way may take the
// gate again before the GC has asked for it, any number of times. Errors: the cause of ctx if it
// ended first.
func (m *Locks) makeWay(ctx context.Context) error {
	m.mu.Lock()
	waiting, entered := m.gate.waiting, m.gate.entered
	m.mu.Unlock()
	if waiting == 0 {
		return nil
	}
	select {
	case <-entered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a GC: %w", context.Cause(ctx))
	}
}

// Idle is called within Add's fn, before it changes anything, to wait for an event
// without holding up a GC. The returned context ends when a GC wants the gate. fn then
// returns the context's cause, and Add calls fn again after the GC. The caller must call
// busy at the end of the wait.
func (m *Locks) Idle(ctx context.Context) (idle context.Context, busy func()) {
	idle, end := context.WithCancelCause(ctx)
	i := &idler{end: end}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.idle[i] = struct{}{}
	if m.gate.waiting > 0 {
		end(errGCFirst)
	}
	return idle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.gate.idle, i)
		end(nil)
	}
}

// Cause returns an error of fn with the cause of the end of its context, which may be that of Idle.
// A call that ended with the context may return another error, and without the cause Add does not
// call fn again.
func Cause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.DeadlineExceeded) || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %s", cause, err.Error())
}

// leaveKey is the key of the function that leaves the gate, in the context of Add's fn.
type leaveKey struct{}

// Leave is called within Add's fn, with its context, once the sandbox is plugged: the rest of
// fn runs outside the gate, so that a long wait holds up no GC, nor the requests behind it.
func (m *Locks) Leave(ctx context.Context) {
	if leave, ok := ctx.Value(leaveKey{}).(func()); ok {
		leave()
	}
}

func (m *Locks) share(ctx context.Context) error { return m.enter(ctx, 1) }

func (m *Locks) unshare() { m.gate.slots.Release(1) }

func (m *Locks) enter(ctx context.Context, part int64) error {
	if m.gate.slots.Acquire(ctx, part) != nil {
		return fmt.Errorf("waiting at the gate between GC and other requests: %w", context.Cause(ctx))
	}
	return nil
}
