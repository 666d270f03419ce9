package block

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// The test has two overlapping pools of one domain, reservations that come and go, and
// two namespaces. Reserved addresses are not handed out (I6) and stay with their
// holders (I4), the counts of both pools add up (I7), and UsedBy matches the addresses
// of a namespace.
func TestCountsWithReservations(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 3))
				s := run(t, blocktest.NewAPI(), Config{FreeLinger: -1})
				bare := []*ipam.Pool{
					pool(t, ipam.PoolSpec{Name: "a", Ranges: []string{"10.0.0.0-10.0.0.127", "fd00::/64"}}),
					pool(t, ipam.PoolSpec{Name: "b", Ranges: []string{"10.0.0.64-10.0.0.200"}}),
				}
				pools := []*ipam.Pool{bare[0], bare[1]}
				var reservation *ipam.Reservation
				has := map[int]ipam.Holder{}
				for i := range 150 {
					advance(time.Duration(rnd.Int64N(int64(4 * time.Second))))
					switch rnd.IntN(6) {
					case 0:
						reservation = reserve(t, rnd)
						for k := range bare {
							pools[k] = bare[k].Without([]*ipam.Reservation{reservation})
						}
					case 1, 2, 3:
						h := holder(i)
						h.Namespace = fmt.Sprintf("team-%d", rnd.IntN(2))
						p := pools[rnd.IntN(2)]
						leases, err := s.Take(t.Context(), p, Request{Holder: h})
						if err != nil && !errors.Is(err, fault.ErrExhausted) {
							t.Fatal(err)
						}
						for _, l := range leases {
							has[i] = h
							if !p.Allows(l.Addr) {
								t.Fatalf("I6: %s is reserved and taken", l.Addr)
							}
						}
					default:
						for k, h := range has {
							if rnd.IntN(4) == 0 {
								mustFree(t, s.Store, h)
								delete(has, k)
							}
						}
					}
					checkCounts(t, s.Store, pools, reservation)
				}
				if held := len(inMemory(s.Store)); held < len(has) {
					t.Errorf("I4: %d addresses are held by %d pods", held, len(has))
				}
			})
		})
	}
}

func reserve(t *testing.T, rnd *rand.Rand) *ipam.Reservation {
	t.Helper()
	first := rnd.IntN(200)
	r, err := ipam.ParseReservation("", []string{
		fmt.Sprintf("10.0.0.%d-10.0.0.%d", first, first+rnd.IntN(200-first)),
		fmt.Sprintf("fd00::-fd00::%x", rnd.IntN(400)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func checkCounts(t *testing.T, s *Store, pools []*ipam.Pool, r *ipam.Reservation) {
	t.Helper()
	for _, p := range pools {
		used := map[string]map[ipam.Family]int{"team-0": {}, "team-1": {}}
		var within, allocated int
		for l := range s.All() {
			if p.Covers(l.Addr) {
				used[l.Holder.Namespace][ipam.FamilyOf(l.Addr)]++
				allocated++
			}
			if r != nil && r.Contains(l.Addr) {
				within++
			}
		}
		for ns, n := range used {
			if got, want := s.UsedBy(ns, p, ""), max(n[ipam.IPv4], n[ipam.IPv6]); got != want {
				t.Fatalf("namespace %s uses %d of pool %s, want %d", ns, got, p.Name(), want)
			}
		}
		c := s.Counts(p)
		if c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved || c.Free > c.Usable || int(c.Allocated) != allocated {
			t.Fatalf("I7: pool %s: %v, %d are allocated", p.Name(), c, allocated)
		}
		if r != nil && len(s.Within(r)) != within {
			t.Fatalf("%d reserved addresses are in use, want %d", len(s.Within(r)), within)
		}
	}
}
