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
	"fairlead.dev/fairlead/internal/ipam/objects"
)

// counts asks whether a pool's status adds up, and is what its blocks say. Free
// and cooling turn into each other with time alone, so blocks are compared by
// what is allocated and held.
func (a *auditor) counts(o *v1alpha1.IPPool) {
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration < o.Generation {
		return // its counts are of another spec, and its condition says so
	}
	s := o.Status
	about := "pool " + o.Name
	if sum := s.Free + s.Allocated + s.Cooling + s.Held + s.Reserved; sum != s.Usable {
		a.find(AddsUp, o.Spec.Domain, about, "the counts do not add up",
			fmt.Sprintf("usable %d, but free %d + allocated %d + cooling %d + held %d + reserved %d = %d",
				s.Usable, s.Free, s.Allocated, s.Cooling, s.Held, s.Reserved, sum))
	}
	all, err := objects.Pool(o)
	if err != nil {
		a.find(AddsUp, o.Spec.Domain, about, "the pool is Ready and its spec cannot be read", err.Error())
		return
	}
	pool := all.Without(objects.Reservations(a.Reservations))
	var (
		real     ipam.Counts
		versions []string
	)
	for at, b := range a.blocks {
		if at.domain == pool.Domain() {
			c := b.Counts(pool, a.Now)
			real.Allocated += c.Allocated
			real.Held += c.Held
			versions = append(versions, a.versions[at])
		}
	}
	slices.Sort(versions)
	for _, c := range []struct {
		name  string
		shown int64
		real  uint64
	}{
		{"usable", s.Usable, min(pool.Usable(), math.MaxInt64)},
		{"allocated", s.Allocated, real.Allocated},
		{"held", s.Held, real.Held},
	} {
		if uint64(c.shown) != c.real {
			a.findings = append(a.findings, Finding{
				Invariant: AddsUp, Domain: pool.Domain(), Address: about,
				What:     "the status and the blocks differ in " + c.name,
				Evidence: fmt.Sprintf("status says %d, spec and blocks say %d", c.shown, c.real),
				version:  strings.Join(versions, " "),
			})
		}
	}
}
