package block

import (
	"context"
	"maps"
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
// Errors: ErrUnavailable.
func (s *Store) DropEmpty(ctx context.Context, node string) error {
	return s.drop(ctx, 0, func() []*entry {
		return slices.DeleteFunc(slices.Collect(maps.Values(s.known.byNode[node])), func(e *entry) bool {
			d, ok := s.known.idleFor(e)
			return !ok || d < 0 || !s.known.droppable(e)
		})
	})
}

// DropIdle deletes the blocks of an existing node that this process has seen idle for
// the given time. The node keeps at least one block of each family and domain. DropIdle
// returns after what time the next block may be due; 0 if none is idle.
//
// Errors: ErrUnavailable.
func (s *Store) DropIdle(ctx context.Context, node string, idle time.Duration) (again time.Duration, err error) {
	left := func(e *entry) time.Duration {
		d, _ := s.known.idleFor(e)
		return idle - d
	}
	due := false
	s.mu.Lock()
	for _, e := range s.known.spare(node) {
		switch in := left(e); {
		case in <= 0:
			due = true
		case again == 0 || in < again:
			again = in
		}
	}
	s.mu.Unlock()
	if due {
		err = s.drop(ctx, idle, func() []*entry {
			return slices.DeleteFunc(s.known.spare(node), func(e *entry) bool { return left(e) > 0 })
		})
	}
	return again, err
}

// DropVacant deletes the shared blocks of a pool in which no address is taken, held or
// cooling. rest is true if some block stays only because addresses are cooling down or in
// doubt: call DropVacant again later.
//
// Errors: ErrUnavailable.
func (s *Store) DropVacant(ctx context.Context, p *ipam.Pool) (rest bool, err error) {
	var resting atomic.Bool // drop may return before its function has run
	err = s.drop(ctx, 0, func() (out []*entry) {
		s.known.noteCooldown(p)
		now := s.known.now()
		for _, e := range s.known.blocks {
			switch {
			case e.domain != p.Domain() || e.node != "" || e.obj == nil || e.foreign || !p.HandsOut(e.prefix) || e.next.Used() > 0:
			case !s.known.droppable(e) || !e.next.Idle(now, s.known.cooldown(e.domain)):
				resting.Store(true)
			default:
				out = append(out, e)
			}
		}
		return out
	})
	return resting.Load(), err
}

// drop deletes blocks that have been idle for the given time. which returns the blocks; it
// is called with Store.mu held.
func (s *Store) drop(ctx context.Context, idle time.Duration, which func() []*entry) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		return nil, t.perform(ctx, func(add func(*entry, op)) {
			for _, e := range which() {
				add(e, op{kind: opDrop, idle: idle})
			}
		})
	})
	return err
}
