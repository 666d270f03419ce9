package block

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

// rerouteDelay is how long a block that was routed to one node is not routed to another.
// In this time the other nodes learn that the old route is gone.
const rerouteDelay = 10 * time.Second

// formerNode is the node that a block was routed to, and the time of the end, as
// ipam.Moment.Run.
type formerNode struct {
	node string
	at   time.Duration
}

// DropEmpty deletes the blocks of a node that is gone. Blocks with an address that is
// taken, held or cooling stay, without an error: call DropEmpty again later.
//
// Errors: fault.ErrUnavailable.
func (s *Store) DropEmpty(ctx context.Context, node string) error {
	return s.drops(ctx, 0, func() []*entry {
		var out []*entry
		for _, e := range s.known.byNode[node] {
			if d, ok := s.known.idleFor(e); ok && d >= 0 && s.known.droppable(e) {
				out = append(out, e)
			}
		}
		return out
	})
}

// DropIdle deletes the blocks of an existing node that this process has seen idle for
// the given time. The node keeps at least one block of each family and domain. DropIdle
// returns after what time the next block may be due; 0 if none is idle.
//
// Errors: fault.ErrUnavailable.
func (s *Store) DropIdle(ctx context.Context, node string, idle time.Duration) (again time.Duration, err error) {
	left := func(e *entry) time.Duration {
		d, _ := s.known.idleFor(e)
		return idle - d
	}
	due := func() (out []*entry) {
		again = 0
		for _, e := range s.known.spare(node) {
			switch in := left(e); {
			case in <= 0:
				out = append(out, e)
			case again == 0 || in < again:
				again = in
			}
		}
		return out
	}
	s.mu.Lock()
	n := len(due())
	s.mu.Unlock()
	if n > 0 {
		err = s.drops(ctx, idle, func() []*entry {
			return slices.DeleteFunc(s.known.spare(node), func(e *entry) bool { return left(e) > 0 })
		})
	}
	return again, err
}

// drops deletes blocks that have been idle for the given time. which returns the
// blocks; it is called with Store.mu held.
func (s *Store) drops(ctx context.Context, idle time.Duration, which func() []*entry) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		var ops []*op
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		for _, e := range which() {
			o := &op{kind: opDrop, idle: idle, cancel: ctx.Done(), done: make(chan struct{})}
			t.enqueue(e, o)
			ops = append(ops, o)
		}
		s.mu.Unlock()
		return nil, wait(ops)
	})
	return err
}

// DropVacant deletes the shared blocks of a pool in which no address is taken, held or
// cooling. rest is true if some block stays only because addresses are cooling down or in
// doubt: call DropVacant again later.
//
// Errors: fault.ErrUnavailable.
func (s *Store) DropVacant(ctx context.Context, p *ipam.Pool) (rest bool, err error) {
	var resting atomic.Bool // do may return before its function does
	_, err = s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		var ops []*op
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		s.known.noteCooldown(p)
		now := s.known.now()
		for _, e := range s.known.blocks {
			if e.domain != p.Domain() || e.node != "" || e.obj == nil || e.foreign || !p.HandsOut(e.prefix) || e.next.Used() > 0 {
				continue
			}
			if !s.known.droppable(e) || !e.next.Idle(now, s.known.cooldown(e.domain)) {
				resting.Store(true)
				continue
			}
			o := &op{kind: opDrop, cancel: ctx.Done(), done: make(chan struct{})}
			t.enqueue(e, o)
			ops = append(ops, o)
		}
		s.mu.Unlock()
		return nil, wait(ops)
	})
	return resting.Load(), err
}
