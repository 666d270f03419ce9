package sim

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// allocator is the part of the store that can be broken on purpose.
type allocator interface {
	Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error)
	Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error
	Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error)
}

// ordered lets one caller after another into a store. One write wakes several pods. If
// Go's scheduler chose the first of them, it would decide which pod gets the last address
// of the next network, and a seed would not reproduce.
type ordered struct {
	*block.Store
	allocator allocator
	l         *leader
}

// Take waits for the holder's turn.
func (o ordered) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	o.l.turn(r.Holder, p.Domain())
	return o.allocator.Take(ctx, p, r)
}

// Free waits for the holder's turn.
func (o ordered) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	o.l.turn(h, domain)
	return o.allocator.Free(ctx, h, domain, addrs)
}

// Confirm waits for the holder's turn.
func (o ordered) Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error) {
	o.l.turn(h, domain)
	return o.allocator.Confirm(ctx, h, domain, addrs)
}

// Resolved waits for the holder's turn.
func (o ordered) Resolved(ctx context.Context, h ipam.Holder) ([]block.Lease, error) {
	o.l.turn(h, "")
	return o.Store.Resolved(ctx, h)
}

// turn is a caller's turn; it begins when begin is closed.
type turn struct {
	leader int
	holder ipam.Holder
	domain string
	begin  chan struct{}
}

// turn blocks until it is the holder's turn.
func (l *leader) turn(h ipam.Holder, domain string) {
	t := turn{l.id, h, domain, make(chan struct{})}
	l.w.mu.Lock()
	l.w.turns = append(l.w.turns, t)
	l.w.mu.Unlock()
	<-t.begin
}

// nextTurn begins the first of the turns, and reports whether there was one.
func (w *simulation) nextTurn() bool {
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
