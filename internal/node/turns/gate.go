package turns

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/semaphore"
)

// gate is what ADDs and DELs share and GC has alone (CNI specification 1.1.0, "GC": no
// other operation at the same time). It is first come, first served, so neither keeps
// the other out for ever.
type gate struct {
	room    *semaphore.Weighted
	wanting int                 // GCs that wait
	idle    map[*idler]struct{} // ADDs that share the gate and only wait
}

// whole is what a GC takes of the room, and everybody else takes one of.
const whole = math.MaxInt64

func newGate() gate { return gate{room: semaphore.NewWeighted(whole), idle: map[*idler]struct{}{}} }

// idler shares the gate and only waits.
type idler struct{ end context.CancelCauseFunc }

// errRoom ends the idling of an ADD that a GC would have to wait for.
var errRoom = errors.New("a GC comes first")

// Alone runs fn while no ADD and no DEL runs: those that run are waited for,
// those that come wait.
func (m *Turns) Alone(ctx context.Context, fn func(context.Context) error) error {
	m.mu.Lock()
	m.gate.wanting++
	for i := range m.gate.idle {
		i.end(errRoom)
	}
	m.mu.Unlock()
	err := m.enter(ctx, whole)
	m.mu.Lock()
	m.gate.wanting--
	m.mu.Unlock()
	if err != nil {
		return err
	}
	defer m.gate.room.Release(whole)
	return fn(ctx)
}

// Idle is for an Add that has done nothing yet and waits for others: so that
// nobody has to wait for it, the returned context ends when somebody wants the gate
// alone. When fn returns its cause, Add begins again, behind them. busy is to be
// called at the end of the wait.
func (m *Turns) Idle(ctx context.Context) (idle context.Context, busy func()) {
	idle, end := context.WithCancelCause(ctx)
	i := &idler{end: end}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.idle[i] = struct{}{}
	if m.gate.wanting > 0 {
		end(errRoom)
	}
	return idle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.gate.idle, i)
		end(nil)
	}
}

func (m *Turns) share(ctx context.Context) error { return m.enter(ctx, 1) }

func (m *Turns) unshare() { m.gate.room.Release(1) }

func (m *Turns) enter(ctx context.Context, part int64) error {
	if m.gate.room.Acquire(ctx, part) != nil {
		return fmt.Errorf("waiting at the gate between GC and other requests: %w", context.Cause(ctx))
	}
	return nil
}
