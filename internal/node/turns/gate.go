package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// gate is what ADDs and DELs share and GC has alone (CNI specification 1.1.0,
// "GC": no other operation at the same time). Who asks first gets it first, so
// that neither keeps the other out for ever.
type gate struct {
	sharing int
	alone   bool
	waiting []*visitor
	idle    map[*idler]struct{} // of those that share it
}

// idler shares the gate and only waits.
type idler struct{ end context.CancelCauseFunc }

// errRoom ends the idling of an ADD that a GC would have to wait for.
var errRoom = errors.New("a GC comes first")

// visitor waits at the gate.
type visitor struct {
	alone bool
	open  chan struct{}
}

// Alone runs fn while no ADD and no DEL runs: those that run are waited for,
// those that come wait.
func (m *Turns) Alone(ctx context.Context, fn func(context.Context) error) error {
	if err := m.enter(ctx, true); err != nil {
		return err
	}
	defer m.leave(true)
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
	if slices.ContainsFunc(m.gate.waiting, func(v *visitor) bool { return v.alone }) {
		end(errRoom)
	}
	return idle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.gate.idle, i)
		end(nil)
	}
}

func (m *Turns) share(ctx context.Context) error { return m.enter(ctx, false) }
func (m *Turns) unshare()                        { m.leave(false) }

// enter waits at the gate.
func (m *Turns) enter(ctx context.Context, alone bool) error {
	m.mu.Lock()
	if len(m.gate.waiting) == 0 && m.gate.lets(alone) {
		m.gate.admit(alone)
		m.mu.Unlock()
		return nil
	}
	v := &visitor{alone: alone, open: make(chan struct{})}
	m.gate.waiting = append(m.gate.waiting, v)
	if alone {
		for i := range m.gate.idle {
			i.end(errRoom)
		}
	}
	m.mu.Unlock()

	select {
	case <-v.open:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	if i := slices.Index(m.gate.waiting, v); i >= 0 {
		m.gate.waiting = slices.Delete(m.gate.waiting, i, i+1)
		m.gate.advance() // those behind it may have waited for it alone
		m.mu.Unlock()
	} else { // it was let in in the same moment
		m.mu.Unlock()
		m.leave(alone)
	}
	return fmt.Errorf("waiting at the gate between GC and other requests: %w", context.Cause(ctx))
}

// leave lets in who waits.
func (m *Turns) leave(alone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if alone {
		m.gate.alone = false
	} else {
		m.gate.sharing--
	}
	m.gate.advance()
}

// lets tells whether one more may come in now.
func (g *gate) lets(alone bool) bool { return !g.alone && (!alone || g.sharing == 0) }

func (g *gate) admit(alone bool) {
	if alone {
		g.alone = true
	} else {
		g.sharing++
	}
}

// advance lets in those at the head of the queue that may come in.
func (g *gate) advance() {
	for len(g.waiting) > 0 && g.lets(g.waiting[0].alone) {
		v := g.waiting[0]
		g.waiting = g.waiting[1:]
		g.admit(v.alone)
		close(v.open)
	}
}
