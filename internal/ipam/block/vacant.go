package block

import (
	"context"
	"sync/atomic"

	"fairlead.dev/fairlead/internal/ipam"
)

// DropVacant deletes the shared blocks of a pool in which no address is taken, held or
// cooling. rest is true if some block stays only because addresses are cooling down or in
// doubt: call DropVacant again later.
//
// Errors: ErrUnavailable.
func (s *Store) DropVacant(ctx context.Context, p *ipam.Pool) (rest bool, err error) {
	var resting atomic.Bool // do may return before its function does
	_, err = s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		var ops []*op
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return nil, ErrStopped
		}
		s.noteCooldown(p)
		now := s.now()
		for _, e := range s.blocks {
			if e.domain != p.Domain() || e.node != "" || e.obj == nil || e.foreign || !p.HandsOut(e.prefix) || e.next.Used() > 0 {
				continue
			}
			if !s.droppable(e) || !e.next.Idle(now, s.cooldown(e.domain)) {
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
