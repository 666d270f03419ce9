package block

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
)

// txn is one call of Take, Free or DropEmpty.
type txn struct {
	s *Store
	// at is the block it waits for. Store.mu guards it.
	at *entry
}

// result of a txn.
type result struct {
	leases []Lease
	err    error
}

// do runs f apart from the caller, who may stop waiting before the outcome of
// a write is known.
func (s *Store) do(ctx context.Context, f func(context.Context, *txn) ([]Lease, error)) ([]Lease, error) {
	t := &txn{s: s}
	out := make(chan result, 1)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil, ErrStopped
	}
	s.txns.Go(func() {
		leases, err := f(ctx, t)
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
		return nil, t.gaveUp(ctx)
	}
}

// gaveUp says why the caller waits no longer.
func (t *txn) gaveUp(ctx context.Context) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	switch {
	case t.at == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	case t.at.cause != nil:
		return fmt.Errorf("%w: block %s: %w: %w", ErrUnavailable, t.at.name, ctx.Err(), t.at.cause)
	default:
		return fmt.Errorf("%w: block %s: %w", ErrUnavailable, t.at.name, ctx.Err())
	}
}

// Take returns one address per family of the pool for the holder: those that
// it has, else new ones. On an error it may have taken some: they are the
// holder's, and the next Take or Free finds them. Addresses that the holder has
// are confirmed by a read; a new one is one write, or a share of one.
//
// It fails with ErrInvalid, ErrExhausted, ErrConflict and ErrUnavailable.
func (s *Store) Take(ctx context.Context, p *ipam.Pool, r Request) ([]Lease, error) {
	wants, err := parse(p, r)
	if err != nil {
		return nil, err
	}
	return s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		unlock, err := s.owners.lock(ctx, keyOf(r.Holder))
		if err != nil {
			return nil, err
		}
		defer unlock()
		if r.Claim != "" {
			unlock, err := s.owners.lock(ctx, claimKey(r.Claim))
			if err != nil {
				return nil, err
			}
			defer unlock()
		}
		return t.take(ctx, wants)
	})
}

// want is an address to be had.
type want struct {
	// pool as it is now. Store.mu is held.
	pool   func() *ipam.Pool
	holder ipam.Holder
	family ipam.Family
	// addr that is requested; zero for any.
	addr netip.Addr
	// claim whose the address is to be; empty for none.
	claim string
	// has is the block in which the holder has an address, or may have.
	has *entry
	// avoid are blocks that could not serve it.
	avoid map[string]bool
}

// parse checks a request and splits it by family.
func parse(p *ipam.Pool, r Request) ([]want, error) {
	if err := r.Holder.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if p.PerNode() && r.Holder.Node == "" {
		return nil, fmt.Errorf("%w: pool %s hands out addresses per node, and the holder has no node", ErrInvalid, p.Name())
	}
	if p.PerNode() && r.Claim != "" {
		return nil, fmt.Errorf("%w: pool %s hands out addresses per node, so claim %s cannot keep one: a claim needs a pool with placement Shared", ErrInvalid, p.Name(), r.Claim)
	}
	now := r.Now
	if now == nil {
		now = func() *ipam.Pool { return p }
	}
	var wants []want
	for _, f := range p.Families() {
		wants = append(wants, want{pool: now, holder: r.Holder, family: f, claim: r.Claim, avoid: map[string]bool{}})
	}
	for _, a := range r.Addresses {
		if !p.Covers(a) {
			return nil, fmt.Errorf("%w: address %s is in no range of pool %s (%s)", ErrInvalid, a, p.Name(), strings.Join(p.Ranges(), ", "))
		}
		i := slices.IndexFunc(wants, func(w want) bool { return w.family == ipam.FamilyOf(a) })
		if other := wants[i].addr; other.IsValid() && other != a {
			return nil, fmt.Errorf("%w: two %s addresses are requested, %s and %s: at most one per family", ErrInvalid, wants[i].family, other, a)
		}
		wants[i].addr = a
	}
	return wants, nil
}

// take gets the addresses in the order of families, which is that of block
// names. When a later family fails, what was taken of an earlier one stays the
// holder's, and its next take finds it: another leader may have found it for the
// same holder and be writing its record, and to give it back would free it.
func (t *txn) take(ctx context.Context, wants []want) ([]Lease, error) {
	if err := t.prepare(wants); err != nil {
		return nil, err
	}
	got := make([]Lease, len(wants))
	for i := range wants {
		if err := t.one(ctx, &wants[i], &got[i]); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// prepare finds what the holder has, and fails before anything is written if
// a family has nothing left.
func (t *txn) prepare(wants []want) error {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wants {
		p := wants[i].pool()
		s.noteCooldown(p)
		if err := s.adopt(p, &wants[i]); err != nil {
			return err
		}
	}
	if len(wants) == 1 {
		return nil
	}
	for i := range wants {
		w := &wants[i]
		p := w.pool()
		if w.has == nil && !w.addr.IsValid() && s.find(p, w, false) == nil && s.find(p, w, true) == nil {
			return s.exhausted(p, w)
		}
	}
	return nil
}

// adopt looks up what the holder has of the family in the pool: of several, which
// two leaders at once may have given it, what is the claim's.
func (s *Store) adopt(p *ipam.Pool, w *want) error {
	key := keyOf(w.holder)
	var has *Lease
	for _, l := range s.leases[key] {
		if l.Domain != p.Domain() || ipam.FamilyOf(l.Addr) != w.family || !p.Covers(l.Addr) {
			continue
		}
		if l.Addr == w.addr {
			w.has = s.blocks[l.Block]
			return nil
		}
		if has == nil || l.before(*has, w.claim) {
			has = &l
		}
	}
	switch {
	case has != nil && w.addr.IsValid():
		return fmt.Errorf("%w: %s is requested, but %s already has %s: give that back first", ErrConflict, w.addr, w.holder, has.Addr)
	case has != nil:
		w.has = s.blocks[has.Block]
	default:
		if err := s.adoptClaim(p, w); err != nil {
			return err
		}
		// What he may have got is what he asked for, or what the claim has.
		e := s.doubts[key]
		if e != nil && e.domain == p.Domain() && ipam.FamilyOf(e.prefix.Addr()) == w.family &&
			(!w.addr.IsValid() || e.prefix.Contains(w.addr)) {
			w.has = e
		}
	}
	return nil
}

// before says which of two leases of one holder is taken: the claim's, else the lower.
func (l Lease) before(o Lease, claim string) bool {
	if is := l.Claim == claim; is != (o.Claim == claim) {
		return is
	}
	return l.Addr.Less(o.Addr)
}

// one gets one address. It fills got in, and returns no Lease, for the stacks: in a
// burst hundreds of takes wait here at once.
func (t *txn) one(ctx context.Context, w *want, got *Lease) error {
	for {
		o := &op{kind: opTake, holder: w.holder, pool: w.pool, addr: w.addr, claim: w.claim, cancel: ctx.Done(), done: make(chan struct{})}
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

// lease describes what an operation got. The index has it already, unless the
// address was freed again by somebody else in this instant.
func (t *txn) lease(e *entry, o *op) Lease {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	l := Lease{Holder: o.holder, Domain: e.domain, Addr: o.got, Block: e.name}
	if slot, ok := e.base.Slot(o.got); ok && slot.Holder.Same(o.holder) {
		l.Since = slot.Since
	}
	return l
}

// enqueue gives an operation to the committer of a block. Takes have been
// applied by the caller, or wait for the read that a doubtful block gets.
func (t *txn) enqueue(e *entry, o *op) {
	t.at = e
	if o.kind != opTake {
		// Only takes and restores fail to apply.
		_ = e.apply(o, t.s.now())
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

// Free gives addresses of the holder back; all that it has in the domain when
// addrs is empty. Addresses that somebody else has are left alone. It returns
// nil when nothing is left to free, once that is written. Only the holder's
// identity matters.
//
// It fails with ErrUnavailable.
func (s *Store) Free(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		unlock, err := s.owners.lock(ctx, keyOf(h))
		if err != nil {
			return nil, err
		}
		defer unlock()
		due := time.Now().Add(s.cfg.FreeLinger)
		if s.cfg.FreeLinger < 0 {
			due = time.Time{}
		}
		return nil, t.each(ctx, h, domain, addrs, op{kind: opFree, due: due})
	})
	return err
}

// each does one thing to each address of a holder; to all that it has in the
// domain when addrs is empty.
func (t *txn) each(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr, what op) error {
	s := t.s
	var ops []*op
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return ErrStopped
	}
	for _, f := range s.holdings(h, domain, addrs) {
		o := what
		o.holder, o.addr, o.cancel, o.done = h, f.addr, ctx.Done(), make(chan struct{})
		t.enqueue(f.block, &o)
		ops = append(ops, &o)
	}
	s.mu.Unlock()
	return wait(ops)
}

// Confirm reads the blocks of some addresses and returns those that the holder
// has, in their order. Held may be behind, or ahead of what an informer of another
// kind shows; this is neither. Only the holder's identity matters.
//
// It fails with ErrUnavailable.
func (s *Store) Confirm(ctx context.Context, h ipam.Holder, domain string, addrs []netip.Addr) ([]netip.Addr, error) {
	leases, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		unlock, err := s.owners.lock(ctx, keyOf(h))
		if err != nil {
			return nil, err
		}
		defer unlock()
		if err := t.each(ctx, h, domain, addrs, op{kind: opLook}); err != nil {
			return nil, err
		}
		return s.Held(h), nil
	})
	var has []netip.Addr
	for _, a := range addrs {
		if slices.ContainsFunc(leases, func(l Lease) bool { return l.Domain == domain && l.Addr == a }) {
			has = append(has, a)
		}
	}
	return has, err
}

// Settled is Held after a call that ended without knowing what it had done: the
// block is read first, as what was taken may be in another pool than the next call
// would ask. Otherwise it reads memory only.
//
// It fails with ErrUnavailable.
func (s *Store) Settled(ctx context.Context, h ipam.Holder) ([]Lease, error) {
	s.mu.Lock()
	e := s.doubts[keyOf(h)]
	s.mu.Unlock()
	if e != nil {
		if _, err := s.Confirm(ctx, h, e.domain, nil); err != nil {
			return nil, err
		}
	}
	return s.Held(h), nil
}

func wait(ops []*op) error {
	var errs []error
	for _, o := range ops {
		<-o.done
		errs = append(errs, o.err)
	}
	return errors.Join(errs...)
}

// holding is an address to free; zero for all that a holder has in the block.
type holding struct {
	block *entry
	addr  netip.Addr
}

// holdings lists where addresses have to be freed. A block that is not known
// is read before it is believed that nothing is there.
func (s *Store) holdings(h ipam.Holder, domain string, addrs []netip.Addr) []holding {
	var out []holding
	for _, a := range addrs {
		if !a.IsValid() {
			continue
		}
		prefix := ipam.BlockOf(a)
		e := s.blocks[ipam.BlockName(domain, prefix)]
		if e == nil {
			e = s.add(domain, prefix, "")
			e.doubtful = true
		}
		out = append(out, holding{e, a})
	}
	if len(addrs) > 0 {
		return out
	}
	for _, l := range s.leases[keyOf(h)] {
		if l.Domain == domain {
			out = append(out, holding{s.blocks[l.Block], l.Addr})
		}
	}
	if e := s.doubts[keyOf(h)]; e != nil && e.domain == domain {
		out = append(out, holding{block: e})
	}
	return out
}
