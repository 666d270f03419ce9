package sim

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// takes is what a store does, as it is or broken on purpose.
type takes interface {
	Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error)
	Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error
	Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error)
}

// orderly lets one caller after another into a store. One write wakes several
// pods; who of them Go's scheduler lets run first would decide who gets the
// last address of the next network, and a seed would not reproduce.
type orderly struct {
	*block.Store
	takes takes
	l     *leader
}

// Take waits for the holder's turn.
func (o orderly) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	o.l.turn(r.Holder, p.Domain())
	return o.takes.Take(ctx, p, r)
}

// Free waits for the holder's turn.
func (o orderly) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	o.l.turn(h, domain)
	return o.takes.Free(ctx, h, domain, addrs)
}

// Confirm waits for the holder's turn.
func (o orderly) Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error) {
	o.l.turn(h, domain)
	return o.takes.Confirm(ctx, h, domain, addrs)
}

// Settled waits for the holder's turn.
func (o orderly) Settled(ctx context.Context, h ipam.Holder) ([]block.Lease, error) {
	o.l.turn(h, "")
	return o.Store.Settled(ctx, h)
}

// turn of a caller, which begins when it is closed.
type turn struct {
	leader int
	holder ipam.Holder
	domain string
	begin  chan struct{}
}

// turn returns when it is the holder's.
func (l *leader) turn(h ipam.Holder, domain string) {
	t := turn{l.id, h, domain, make(chan struct{})}
	l.w.mu.Lock()
	l.w.turns = append(l.w.turns, t)
	l.w.mu.Unlock()
	<-t.begin
}

// nextTurn begins the first of the turns, and says whether there was one.
func (w *world) nextTurn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.turns) == 0 {
		return false
	}
	slices.SortFunc(w.turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.leader, b.leader), cmp.Compare(a.holder.PodUID, b.holder.PodUID),
			cmp.Compare(a.holder.Interface, b.holder.Interface), cmp.Compare(a.domain, b.domain))
	})
	close(w.turns[0].begin)
	w.turns = slices.Delete(w.turns, 0, 1)
	return true
}
