package turns

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sync/semaphore"
)

// gate is a lock that ADDs and DELs share and that a GC holds alone (CNI specification
// 1.1.0, "GC": no other operation at the same time). It is first come, first served, so
// GCs and other requests cannot starve each other.
type gate struct {
	slots   *semaphore.Weighted
	waiting int                 // number of GCs that wait
	idle    map[*idler]struct{} // ADDs that share the gate and only wait
}

// whole is the number of slots. A GC takes all of them, an ADD or DEL takes one.
const whole = math.MaxInt64

func newGate() gate { return gate{slots: semaphore.NewWeighted(whole), idle: map[*idler]struct{}{}} }

// idler is an ADD that shares the gate and only waits.
type idler struct{ end context.CancelCauseFunc }

// errGCFirst ends the wait of an idle ADD for which a GC would have to wait.
var errGCFirst = errors.New("a GC comes first")

// Alone runs fn while no ADD and no DEL runs. It waits for those that run; later ones
// wait for it.
func (m *Turns) Alone(ctx context.Context, fn func(context.Context) error) error {
	m.mu.Lock()
	m.gate.waiting++
	for i := range m.gate.idle {
		i.end(errGCFirst)
	}
	m.mu.Unlock()
	err := m.enter(ctx, whole)
	m.mu.Lock()
	m.gate.waiting--
	m.mu.Unlock()
	if err != nil {
		return err
	}
	defer m.gate.slots.Release(whole)
	return fn(ctx)
}

// Idle is called within Add's fn, before it changes anything, to wait for an event
// without holding up a GC. The returned context ends when a GC wants the gate. fn then
// returns the context's cause, and Add calls fn again after the GC. The caller must call
// busy at the end of the wait.
func (m *Turns) Idle(ctx context.Context) (idle context.Context, busy func()) {
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

// leaveKey is the key of the function that leaves the gate, in the context of Add's fn.
type leaveKey struct{}

// Leave is called within Add's fn, with its context, once the sandbox is plugged: the rest of
// fn runs outside the gate, so that a long wait holds up no GC, nor the requests behind it.
func (m *Turns) Leave(ctx context.Context) {
	if leave, ok := ctx.Value(leaveKey{}).(func()); ok {
		leave()
	}
}

func (m *Turns) share(ctx context.Context) error { return m.enter(ctx, 1) }

func (m *Turns) unshare() { m.gate.slots.Release(1) }

func (m *Turns) enter(ctx context.Context, part int64) error {
	if m.gate.slots.Acquire(ctx, part) != nil {
		return fmt.Errorf("waiting at the gate between GC and other requests: %w", context.Cause(ctx))
	}
	return nil
}
