package block

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

// txn is one call of a method that waits for operations: Take, Free, DropEmpty and the
// like.
type txn struct {
	s *Store
	// at is the block that the call waits for. Store.mu guards it.
	at *entry
}

// do runs f in a goroutine with the locks of some holders and claims: a second take sees the
// result of the first, and a take after a free does not see the old address. The caller may
// stop waiting before the outcome of a write is known; f then goes on, and keeps the locks.
func (s *Store) do(ctx context.Context, f func(context.Context, *txn) ([]Lease, error), locks ...holderKey) ([]Lease, error) {
	t := &txn{s: s}
	type result struct {
		leases []Lease
		err    error
	}
	out := make(chan result, 1)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil, ErrStopped
	}
	s.txns.Go(func() {
		leases, err := t.locked(ctx, f, locks)
		out <- result{leases, err}
	})
	s.mu.Unlock()
	select {
	case r := <-out:
		return r.leases, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-out:
		return r.leases, r.err
	default:
		return nil, t.timedOut(ctx)
	}
}

func (t *txn) locked(ctx context.Context, f func(context.Context, *txn) ([]Lease, error), locks []holderKey) ([]Lease, error) {
	for _, k := range locks {
		unlock, err := t.s.owners.Lock(ctx, k)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
		}
		defer unlock()
	}
	return f(ctx, t)
}

// timedOut returns the error for a caller that stops waiting.
func (t *txn) timedOut(ctx context.Context) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	switch {
	case t.at == nil:
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, ctx.Err())
	case t.at.cause != nil:
		return fmt.Errorf("%w: block %s: %w: %w", fault.ErrUnavailable, t.at.name, ctx.Err(), t.at.cause)
	default:
		return fmt.Errorf("%w: block %s: %w", fault.ErrUnavailable, t.at.name, ctx.Err())
	}
}

// Take returns one address per family of the pool: the holder's if it has one, a new
// one otherwise. A new address costs one write or a share of one. An address that the
// holder has already is confirmed by a read. If Take fails, it may have taken some
// addresses: they belong to the holder, and the next Take or Free finds them.
//
// Errors: fault.ErrInvalid, fault.ErrExhausted, fault.ErrConflict, fault.ErrUnavailable.
func (s *Store) Take(ctx context.Context, p *ipam.Pool, r Request) ([]Lease, error) {
	wants, err := parse(p, r)
	if err != nil {
		return nil, err
	}
	locks := []holderKey{keyOf(r.Holder)}
	if r.Claim != "" {
		locks = append(locks, claimKey(r.Claim))
	}
	return s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) { return t.take(ctx, wants) }, locks...)
}

// Held returns the addresses of a holder in all domains, sorted by domain and address.
// It reads memory only. Of h only the identity matters.
func (s *Store) Held(h ipam.Holder) []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.known.leases[keyOf(h)])
	slices.SortFunc(out, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), a.Addr.Compare(b.Addr))
	})
	return out
}

// want is one address that a request asks for.
type want struct {
	// pool returns the pool without reserved addresses. Store.mu must be held.
	pool   func() *ipam.Pool
	holder ipam.Holder
	family ipam.Family
	// addr is the requested address; zero for any.
	addr netip.Addr
	// claim that the address is for; empty for none.
	claim string
	// beside are the pods that the holder may share an address with. join is the one of
	// them that has the address; zero for none.
	beside []ipam.Holder
	join   ipam.Holder
	// has is the block in which the holder has, or may have, an address.
	has *entry
	// avoid are the names of blocks that could not serve the want.
	avoid map[string]bool
}

// parse checks a request and splits it by family.
func parse(p *ipam.Pool, r Request) ([]want, error) {
	if err := r.Holder.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if p.PerNode() && r.Holder.Node == "" {
		return nil, fmt.Errorf("%w: pool %s hands out addresses per node, and the holder has no node", fault.ErrInvalid, p.Name())
	}
	if p.PerNode() && r.Claim != "" {
		return nil, fmt.Errorf("%w: pool %s hands out addresses per node, so claim %s cannot keep one: a claim needs a pool with placement Shared", fault.ErrInvalid, p.Name(), r.Claim)
	}
	now := r.Now
	if now == nil {
		now = func() *ipam.Pool { return p }
	}
	var wants []want
	for _, f := range p.Families() {
		wants = append(wants, want{pool: now, holder: r.Holder, family: f, claim: r.Claim, beside: r.Beside, avoid: map[string]bool{}})
	}
	for _, a := range r.Addresses {
		if !p.Covers(a) {
			return nil, fmt.Errorf("%w: address %s is in no range of pool %s (%s)", fault.ErrInvalid, a, p.Name(), strings.Join(p.Ranges(), ", "))
		}
		i := slices.IndexFunc(wants, func(w want) bool { return w.family == ipam.FamilyOf(a) })
		if other := wants[i].addr; other.IsValid() && other != a {
			return nil, fmt.Errorf("%w: two %s addresses are requested, %s and %s: at most one per family", fault.ErrInvalid, wants[i].family, other, a)
		}
		wants[i].addr = a
	}
	return wants, nil
}

// take gets the addresses family by family, which is the order of block names. If a
// later family fails, the holder keeps the address of an earlier one, and its next take
// finds it. Giving it back would be wrong: another leader may have found it for the
// same holder and be writing the record that names it.
func (t *txn) take(ctx context.Context, wants []want) ([]Lease, error) {
	if err := t.prepare(wants); err != nil {
		return nil, err
	}
	got := make([]Lease, len(wants))
	for i := range wants {
		if err := t.takeOne(ctx, &wants[i], &got[i]); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// prepare finds the addresses that the holder has. It fails before anything is written
// if a family has no address left.
func (t *txn) prepare(wants []want) error {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wants {
		p := wants[i].pool()
		s.known.noteCooldown(p)
		if err := s.placement.adopt(p, &wants[i]); err != nil {
			return err
		}
	}
	if len(wants) == 1 {
		return nil
	}
	for i := range wants {
		w := &wants[i]
		p := w.pool()
		if w.has == nil && !w.addr.IsValid() && s.placement.find(p, w, false) == nil && s.placement.find(p, w, true) == nil {
			return s.placement.exhausted(p, w)
		}
	}
	return nil
}

// before reports whether l is preferred to o, another lease of the same holder: the
// lease with the claim first, then the lower address.
func (l Lease) before(o Lease, claim string) bool {
	if is := l.Claim == claim; is != (o.Claim == claim) {
		return is
	}
	return l.Addr.Less(o.Addr)
}

// takeOne takes one address and fills got. It does not return the Lease, to keep the
// stacks small: in a burst hundreds of takes wait here at once.
func (t *txn) takeOne(ctx context.Context, w *want, got *Lease) error {
	for {
		o := &op{kind: opTake, holder: w.holder, pool: w.pool, addr: w.addr, claim: w.claim, join: w.join, cancel: ctx.Done(), done: make(chan struct{})}
		e, err := t.place(w, o)
		if err != nil {
			return err
		}
		<-o.done
		switch {
		case errors.Is(o.err, errMoved):
			w.avoid[e.name], w.has = true, nil
		case o.err != nil:
			return o.err
		default:
			*got = t.lease(e, o)
			return nil
		}
	}
}

// lease returns the lease of a finished operation. Since is missing if the address was
// freed again in the meantime.
func (t *txn) lease(e *entry, o *op) Lease {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	l := Lease{Holder: o.holder, Domain: e.domain, Addr: o.got, Block: e.name}
	if slot, ok := e.base.Slot(o.got); ok {
		l.Since = slot.SinceOf(o.holder)
	}
	return l
}

// enqueue gives an operation to the committer of a block. A take has been applied, or waits
// for the read of a doubtful block. A restore that cannot be applied ends at once.
func (t *txn) enqueue(e *entry, o *op) {
	t.at = e
	if o.kind != opTake {
		if err := e.apply(o, t.s.known.now()); err != nil {
			o.finish(err)
			return
		}
	}
	e.queue = append(e.queue, o)
	t.s.start(e)
	if o.due.IsZero() {
		select {
		case e.kick <- struct{}{}:
		default:
		}
	}
}

// perform performs the operations that plan adds, and returns their errors. plan is called
// with Store.mu held.
func (t *txn) perform(ctx context.Context, plan func(add func(e *entry, o op))) error {
	var ops []*op
	t.s.mu.Lock()
	if t.s.stopped {
		t.s.mu.Unlock()
		return ErrStopped
	}
	plan(func(e *entry, o op) {
		o.cancel, o.done = ctx.Done(), make(chan struct{})
		t.enqueue(e, &o)
		ops = append(ops, &o)
	})
	t.s.mu.Unlock()
	var errs []error
	for _, o := range ops {
		<-o.done
		errs = append(errs, o.err)
	}
	return errors.Join(errs...)
}

// Free gives addresses of the holder back; if addrs is empty, all that it has in the
// domain. Addresses of other holders are left alone. Free returns nil when the result
// is written, also if there was nothing to free. Of h only the identity matters.
//
// Errors: fault.ErrUnavailable.
func (s *Store) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		due := time.Now().Add(s.cfg.FreeLinger)
		if s.cfg.FreeLinger < 0 {
			due = time.Time{}
		}
		return nil, t.forEach(ctx, h, domain, addrs, op{kind: opFree, due: due})
	}, keyOf(h))
	return err
}

// Restore takes the address of a lease again for its holder: the block has lost the record.
// If the block does not exist, it is created and routed to node; to none, for a shared block,
// if node is empty. Restore returns nil when that is written, and also if the holder has the
// address. An address of another holder is left alone, but for one of beside, with which the
// holder shares it: both are launchers of one virtual machine.
//
// Errors: fault.ErrConflict if another holder has the address, or its record is unreadable;
// fault.ErrInvalid; fault.ErrUnavailable.
func (s *Store) Restore(ctx context.Context, l Lease, beside []ipam.Holder, node string) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		return nil, t.perform(ctx, func(add func(*entry, op)) {
			add(s.known.lookup(l.Domain, ipam.BlockOf(l.Addr), node), op{kind: opRestore, holder: l.Holder, addr: l.Addr, claim: l.Claim, beside: beside})
		})
	}, keyOf(l.Holder))
	return err
}

// forEach performs an operation for each of the holder's addresses; if addrs is empty,
// for all that it has in the domain.
func (t *txn) forEach(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr, what op) error {
	return t.perform(ctx, func(add func(*entry, op)) {
		t.s.known.holdings(h, domain, addrs, func(e *entry, a netip.Addr) {
			what.holder, what.addr = h, a
			add(e, what)
		})
	})
}

// Confirm reads the blocks of some addresses, and returns those addresses that the
// holder has, in the order of addrs. Held returns the cached state, which may be older
// or newer than that of another kind's informer; Confirm returns the current state. Of
// h only the identity matters.
//
// Errors: fault.ErrUnavailable.
func (s *Store) Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error) {
	leases, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		if err := t.forEach(ctx, h, domain, addrs, op{kind: opRead}); err != nil {
			return nil, err
		}
		return s.Held(h), nil
	}, keyOf(h))
	var has []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(leases, func(l Lease) bool { return l.Domain == domain && l.Addr == a }) {
			has = append(has, a)
		}
	}
	return has, err
}

// Resolved returns Held. If the holder's last call ended with an unknown outcome, it
// first reads that call's block: the address may be in another pool than the pool of
// the next call. Otherwise it reads memory only.
//
// Errors: fault.ErrUnavailable.
func (s *Store) Resolved(ctx context.Context, h ipam.Holder) ([]Lease, error) {
	s.mu.Lock()
	e := s.known.doubts[keyOf(h)]
	s.mu.Unlock()
	if e != nil {
		if _, err := s.Confirm(ctx, h, e.domain, nil); err != nil {
			return nil, err
		}
	}
	return s.Held(h), nil
}
