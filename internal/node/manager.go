package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errClosed says that the runtime has ended a sandbox: its DEL came.
var errClosed = errors.New("sandbox was deleted")

const (
	// tombstoneAge is for how long the ADD of a deleted sandbox is refused. A
	// runtime that gave up an ADD sends the DEL within milliseconds; what comes
	// later was held up in a queue.
	tombstoneAge = 10 * time.Minute
	// maxTombstones bounds the memory when more than 50 DELs a second come.
	maxTombstones = 1 << 15
)

// manager lets operations on one sandbox run one after the other, in the order
// in which they came, and those on different sandboxes side by side. A DEL
// cancels the ADD that runs, waits for its undo, and leaves a tombstone that
// refuses every later ADD of that sandbox.
type manager struct {
	now func() time.Time

	mu        sync.Mutex
	sandboxes map[string]*turns
	buried    map[string]struct{}
	order     []tombstone // by age, for forgetting
}

type tombstone struct {
	containerID string
	at          time.Time
}

// turns is the queue for one sandbox. Whoever waits is counted before it
// waits, so the entry cannot be dropped and made anew under it.
type turns struct {
	users   int
	busy    bool
	waiting []chan struct{}
	// cancel ends the operation that runs, if a DEL may.
	cancel context.CancelCauseFunc
}

func newManager(now func() time.Time) *manager {
	return &manager{now: now, sandboxes: map[string]*turns{}, buried: map[string]struct{}{}}
}

// add runs fn alone on a sandbox. Its ctx ends with cause errClosed when a DEL
// of the sandbox comes, and fn is expected to undo what it did. The ADD of a
// sandbox that was deleted is errClosed.
func (m *manager) add(ctx context.Context, containerID string, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return m.run(ctx, containerID, func(t *turns) error {
		if _, dead := m.buried[containerID]; dead {
			return fmt.Errorf("sandbox %s: %w", containerID, errClosed)
		}
		t.cancel = cancel
		return nil
	}, fn)
}

// del runs fn alone on a sandbox, after the ADD that it cancels.
func (m *manager) del(ctx context.Context, containerID string, fn func(context.Context) error) error {
	m.mu.Lock()
	m.bury(containerID)
	if t := m.sandboxes[containerID]; t != nil && t.cancel != nil {
		t.cancel(fmt.Errorf("sandbox %s: %w", containerID, errClosed))
	}
	m.mu.Unlock()
	return m.run(ctx, containerID, nil, fn)
}

// do runs fn alone on a sandbox.
func (m *manager) do(ctx context.Context, containerID string, fn func(context.Context) error) error {
	return m.run(ctx, containerID, nil, fn)
}

// run waits for its turn, asks admit (under the lock) and runs fn.
func (m *manager) run(ctx context.Context, containerID string, admit func(*turns) error, fn func(context.Context) error) error {
	t, err := m.take(ctx, containerID)
	if err != nil {
		return err
	}
	defer m.pass(containerID, t)
	if admit != nil {
		m.mu.Lock()
		err := admit(t)
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return fn(ctx)
}

// take waits for this caller's turn.
func (m *manager) take(ctx context.Context, containerID string) (*turns, error) {
	m.mu.Lock()
	t := m.sandboxes[containerID]
	if t == nil {
		t = &turns{}
		m.sandboxes[containerID] = t
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
			m.drop(containerID, t)
			m.mu.Unlock()
			return nil, fmt.Errorf("waiting for the operation before on sandbox %s: %w", containerID, context.Cause(ctx))
		}
	}
	m.mu.Unlock()
	// The turn came in the same moment: it has to be passed on.
	m.pass(containerID, t)
	return nil, fmt.Errorf("waiting for the operation before on sandbox %s: %w", containerID, context.Cause(ctx))
}

// pass ends this caller's turn and begins the next one's.
func (m *manager) pass(containerID string, t *turns) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.cancel = nil
	if len(t.waiting) > 0 {
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	} else {
		t.busy = false
	}
	m.drop(containerID, t)
}

// drop forgets a user of an entry, and the entry with its last one.
func (m *manager) drop(containerID string, t *turns) {
	if t.users--; t.users == 0 {
		delete(m.sandboxes, containerID)
	}
}

// bury leaves a tombstone and forgets those that are old.
func (m *manager) bury(containerID string) {
	now := m.now()
	if _, dead := m.buried[containerID]; !dead {
		m.order = append(m.order, tombstone{containerID: containerID, at: now})
		m.buried[containerID] = struct{}{}
	}
	for len(m.order) > 0 {
		first := m.order[0]
		if len(m.order) <= maxTombstones && now.Sub(first.at) < tombstoneAge {
			return
		}
		m.order = m.order[1:]
		delete(m.buried, first.containerID)
	}
}
