package native

import (
	"fmt"
	"sync"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// quotaOf runs a driver with a pool that has a quota.
func quotaOf(t *testing.T, api *blocktest.API, limit int32, spec v1alpha1.IPPoolSpec) *inMemory {
	t.Helper()
	d := start(t, api, "a")
	d.cfg.Claims = written{store: d.store}
	spec.Quota.PerNamespace = limit
	d.pool("a", spec)
	return d
}

func claiming(n int, claim string) *driver.Request {
	r := drivertest.Request(n)
	asks(r).Claim = claim
	return r
}

// Addresses held for claims count: a namespace cannot exceed its quota by pods that come
// and go, each with a claim of its own.
func TestQuotaCountsWhatClaimsKeep(t *testing.T) {
	for _, tc := range []struct {
		name string
		spec v1alpha1.IPPoolSpec
		ask  func(n int) *driver.Request
	}{
		{"named claims", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/26"}}, func(n int) *driver.Request { return claiming(n, fmt.Sprintf("c-%d", n)) }},
		{"a sticky pool", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/26"}, Sticky: v1alpha1.StickyStatefulSet}, func(n int) *driver.Request {
			r := drivertest.Request(n)
			asks(r).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyStatefulSet: r.PodName}
			return r
		}},
		{"both families", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/26", "fd00::/122"}}, func(n int) *driver.Request { return claiming(n, fmt.Sprintf("c-%d", n)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := blocktest.NewAPI()
			d := quotaOf(t, api, 1, tc.spec)
			first := tc.ask(0)
			had := d.ensureAndRelease(first)
			for n := 1; n < 8; n++ {
				d.refused(tc.ask(n), "Exhausted", "namespace default has 1 addresses", "spec.quota.perNamespace allows 1")
			}
			// The claim's next pod gets the held address within the quota, also from a
			// leader that has just started.
			after := quotaOf(t, api, 1, tc.spec)
			after.refused(tc.ask(8), "Exhausted", "namespace default has 1 addresses")
			if again := after.ensureAndRelease(tc.ask(0)); again.Addresses[0] != had.Addresses[0] {
				t.Errorf("the claim's next pod has %v, want %v", again.Addresses, had.Addresses)
			}
			other := tc.ask(9)
			other.Namespace = "another"
			after.get(other)
		})
	}
}

// Many pods with claims come and go at once, and their addresses stay held.
func TestQuotaWithClaimsAtOnce(t *testing.T) {
	const limit = 3
	d := quotaOf(t, blocktest.NewAPI(), limit, v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}})
	var wg sync.WaitGroup
	for n := range 40 {
		wg.Go(func() {
			for range 3 {
				r := claiming(n, fmt.Sprintf("c-%d", n))
				a, err := d.Ensure(t.Context(), r)
				if driver.Result(err) == "Exhausted" {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := d.Release(t.Context(), driver.Ref{Owner: r.Owner, Interface: a.Interface}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	kept := 0
	for n := range 40 {
		kept += len(d.store.Claimed(fmt.Sprintf("default/c-%d", n)))
	}
	if kept != limit {
		t.Errorf("claims keep %d addresses, the quota is %d", kept, limit)
	}
}
