package audit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// between is the range of a count. As time passes, a cooling address becomes free or,
// in a block that the pool may not use, reserved. A status is as old as the last
// change, so status and snapshot may differ by the number of freed addresses.
type between struct{ least, most uint64 }

func exactly(n uint64) between { return between{n, n} }

func (b between) String() string {
	if b.least == b.most {
		return fmt.Sprint(b.least)
	}
	return fmt.Sprintf("%d to %d", b.least, b.most)
}

// blockCounts are a pool's counts, summed over blocks as the store does.
type blockCounts struct {
	allocated, held, reserved, cooling between
}

// countBlocks returns the counts of a pool's blocks, and the versions of the blocks.
func (a *auditor) countBlocks(pool *ipam.Pool) (sum blockCounts, versions []string) {
	_, reserved := pool.Size(pool.Families()...)
	sum.reserved = exactly(reserved)
	for at, b := range a.blocks {
		if at.domain != pool.Domain() {
			continue
		}
		versions = append(versions, a.versions[at])
		c := b.Counts(pool, ipam.Moment{Wall: a.Now})
		sum.allocated.add(c.Allocated, c.Allocated)
		sum.held.add(c.Held, c.Held)
		extra := c.Reserved - pool.ReservedIn(at.block)
		var freed uint64
		for slot := range b.Slots() {
			if slot.State == ipam.Freed && pool.Allows(slot.Addr) {
				freed++
			}
		}
		sum.cooling.add(c.Cooling, freed)
		if a.terminating[at] || pool.PerNode() != (b.Node() != "") {
			// The pool may not hand out addresses of this block.
			sum.reserved.add(extra+c.Free-(freed-c.Cooling), extra+c.Free)
		} else {
			sum.reserved.add(extra, extra)
		}
	}
	slices.Sort(versions)
	return sum, versions
}

func (b *between) add(least, most uint64) { b.least, b.most = b.least+least, b.most+most }

// counts checks that the counts in a pool's status add up and match its blocks. The
// free count follows from the sum.
func (a *auditor) counts(o *v1alpha1.IPPool) {
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration < o.Generation {
		return // its counts are of another spec, as its condition shows
	}
	s := o.Status
	about := "pool " + o.Name
	if sum := s.Free + s.Allocated + s.Cooling + s.Held + s.Reserved; sum != s.Usable {
		a.find(AddsUp, o.Spec.Domain, about, "the counts do not add up",
			fmt.Sprintf("usable %d, but free %d + allocated %d + cooling %d + held %d + reserved %d = %d",
				s.Usable, s.Free, s.Allocated, s.Cooling, s.Held, s.Reserved, sum))
	}
	all, err := block.PoolOf(o)
	if err != nil {
		a.find(AddsUp, o.Spec.Domain, about, "the pool is Ready, but its spec is invalid", err.Error())
		return
	}
	pool := all.Without(block.Reservations(a.Reservations))
	real, versions := a.countBlocks(pool)
	for _, c := range []struct {
		name  string
		shown int64
		real  between
	}{
		{"usable", s.Usable, exactly(min(pool.Usable(), math.MaxInt64))},
		{"allocated", s.Allocated, real.allocated},
		{"held", s.Held, real.held},
		{"reserved", s.Reserved, real.reserved},
		{"cooling", s.Cooling, real.cooling},
	} {
		if shown := uint64(c.shown); shown < c.real.least || shown > c.real.most {
			a.findings = append(a.findings, Finding{
				Invariant: AddsUp, Domain: pool.Domain(), Address: about,
				What:     "the status and the blocks differ in " + c.name,
				Evidence: fmt.Sprintf("status has %d, spec and blocks have %v", c.shown, c.real),
				version:  strings.Join(versions, " "),
			})
		}
	}
}
