package block

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

// Claimed returns the addresses of a claim, taken or held, in all domains, the oldest
// first. It reads memory only.
func (s *Store) Claimed(claim string) []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.known.claims[claim])
	slices.SortStableFunc(out, func(a, b Lease) int { return cmp.Or(a.Since.Compare(b.Since), a.Addr.Compare(b.Addr)) })
	return out
}

// Unhold stops holding an address for a claim, and the address cools down. l is a lease
// that Claimed returned. Unhold returns nil when this holding has ended and that is
// written. A later holding of the address is left alone.
//
// Errors: fault.ErrUnavailable.
func (s *Store) Unhold(ctx context.Context, l Lease) error {
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		return nil, t.perform(ctx, func(add func(*entry, op)) {
			if e := s.known.blocks[l.Block]; e != nil {
				add(e, op{kind: opUnhold, claim: l.Claim, addr: l.Addr, since: l.Since})
			}
		})
	}, claimKey(l.Claim))
	return err
}

// Keep sets the claim of an address that a holder has: when the holder gives it back, it is
// held for the claim. l is a lease that Held returned. Keep returns nil when that is
// written, and also if the holder does not have the address any more or it has a claim.
//
// Errors: fault.ErrInvalid if the key of the claim cannot be recorded; fault.ErrUnavailable.
func (s *Store) Keep(ctx context.Context, l Lease, claim string) error {
	if !ipam.ValidClaim(claim) {
		return fmt.Errorf("%w: claim %q: a key has a namespace, a slash and a name, of at most 253 characters", fault.ErrInvalid, claim)
	}
	_, err := s.do(ctx, func(ctx context.Context, t *txn) ([]Lease, error) {
		return nil, t.forEach(ctx, l.Holder, l.Domain, []netip.Addr{l.Addr}, op{kind: opKeep, claim: claim})
	}, keyOf(l.Holder))
	return err
}

// mayJoin reports whether the holder of the want may share a lease. The pool need not hand
// out the address any more: the machine uses it.
func (w *want) mayJoin(p *ipam.Pool, l Lease) bool {
	return slices.ContainsFunc(w.beside, l.Holder.Same) && l.Domain == p.Domain() && p.Covers(l.Addr) &&
		(!w.addr.IsValid() || w.addr == l.Addr)
}
