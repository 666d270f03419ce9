package ipam

import (
	"cmp"
	"errors"
	"math/bits"
	"net/netip"
)

// Reservation is a set of addresses of a domain that are not handed out. It is
// immutable, and safe for concurrent use.
type Reservation struct {
	domain string
	// v4 and v6 are sorted and do not overlap.
	v4, v6 []span
}

// ParseReservation reads the spec of an IPReservation. ranges have the same forms as
// those of a pool. The error joins a *FieldError for every problem. Even with an error,
// it returns a Reservation of all valid entries: a mistake in one entry must not
// release the others.
func ParseReservation(domain string, ranges []string) (*Reservation, error) {
	var ps parser
	r := &Reservation{domain: cmp.Or(domain, DefaultDomain)}
	ps.domain(r.domain)
	list := ps.list("spec.ranges", ranges, maxRanges)
	if len(ranges) == 0 {
		ps.report("spec.ranges", "", "must have an entry: a CIDR as 10.0.0.0/24, first-last, or one address")
	}
	for _, e := range list {
		spans := r.spans(e.family())
		*spans = append(*spans, e.span())
	}
	r.v4, r.v6 = normalize(r.v4), normalize(r.v6)
	return r, errors.Join(ps.errs...)
}

// Reserve returns a Reservation of single addresses.
func Reserve(domain string, addrs []netip.Addr) *Reservation {
	r := &Reservation{domain: domain}
	for _, a := range addrs {
		spans := r.spans(FamilyOf(a))
		*spans = append(*spans, spanOf(a, a))
	}
	r.v4, r.v6 = normalize(r.v4), normalize(r.v6)
	return r
}

// Domain returns the domain of the addresses.
func (r *Reservation) Domain() string { return r.domain }

func (r *Reservation) spans(f Family) *[]span {
	if f == IPv4 {
		return &r.v4
	}
	return &r.v6
}

// Contains reports whether an address is reserved.
func (r *Reservation) Contains(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && anyContains(*r.spans(FamilyOf(a)), numOf(a))
}

// Touches reports whether any address of a block is reserved.
func (r *Reservation) Touches(block netip.Prefix) bool {
	return maskOf(*r.spans(FamilyOf(block.Addr())), block) != 0
}

// Without returns the pool with the reserved addresses of its domain withheld. They
// stay usable, and count as reserved unless they have a holder. Reservations of an
// earlier Without have no effect on the result.
func (p *Pool) Without(reservations []*Reservation) *Pool {
	out := *p
	for _, f := range []Family{IPv4, IPv6} {
		var holes []span
		for _, r := range reservations {
			if r.domain == p.domain {
				holes = append(holes, *r.spans(f)...)
			}
		}
		holes = normalize(holes)
		s := out.space(f)
		s.available = nil
		for _, a := range s.allowed {
			s.available = append(s.available, a.subtract(holes)...)
		}
		s.runs = runsOf(s.available)
	}
	return &out
}

// ReservedIn returns how many of the pool's addresses in a block are reserved.
func (p *Pool) ReservedIn(block netip.Prefix) uint64 {
	return uint64(bits.OnesCount64(p.usableMask(block) &^ p.mask(block)))
}

// Size returns how many addresses some families of the pool have, and how many of those
// are reserved. If usable is cut to math.MaxInt64, reserved is reduced to leave room
// for the addresses that are not reserved.
func (p *Pool) Size(families ...Family) (usable, reserved uint64) {
	var open uint64
	for _, f := range families {
		usable = addSaturating(usable, p.UsableOf(f))
		for _, s := range p.space(f).available {
			open = addSaturating(open, s.size())
		}
		for _, s := range p.space(f).allowed {
			for _, hole := range s.subtract(p.space(f).available) {
				reserved = addSaturating(reserved, hole.size())
			}
		}
	}
	return usable, min(reserved, usable-min(open, usable-usable/2))
}
