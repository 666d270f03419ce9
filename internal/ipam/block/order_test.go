package block

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// A pool with order Lowest hands out its lowest free address, for every node and across
// all blocks.
func TestLowestInAllBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		feedAll(t, api, s.Store)
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.0/22"}, Order: ipam.Lowest, UseEdges: true})
		want, at := []string{}, netip.MustParseAddr("10.0.0.0")
		var got []string
		for _, h := range holders(200, 7) {
			got = append(got, mustTake(t, s.Store, p, h)...)
			want, at = append(want, at.String()), at.Next()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		for _, i := range []int{150, 70, 3} {
			mustFree(t, s.Store, holders(200, 7)[i])
		}
		if got := mustTake(t, s.Store, p, holder(300)); got[0] != "10.0.0.200" {
			t.Errorf("got %s while the lower ones rest", got[0])
		}
		advance(p.Cooldown() + time.Second)
		got = nil
		for i := range 4 {
			got = append(got, mustTake(t, s.Store, p, holderOn("node-9", 400+i))...)
		}
		if diff := cmp.Diff([]string{"10.0.0.3", "10.0.0.70", "10.0.0.150", "10.0.0.201"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// Two leaders take and free at random. Each take of a pool with order Lowest gets the
// lowest address that is free and has cooled down.
func TestLowestAtRandom(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			api := blocktest.NewAPI()
			var leaders []*running
			for range 2 {
				s := run(t, api, Config{FreeLinger: -1})
				feedAll(t, api, s.Store)
				leaders = append(leaders, s)
			}
			p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.5-10.0.0.200", "10.0.1.0/27"}, Excludes: []string{"10.0.0.60-10.0.0.130"}, Order: ipam.Lowest})
			var all []netip.Addr
			for a := netip.MustParseAddr("10.0.0.0"); a != netip.MustParseAddr("10.0.2.0"); a = a.Next() {
				if p.Allows(a) {
					all = append(all, a)
				}
			}
			taken, freed := map[netip.Addr]ipam.Holder{}, map[netip.Addr]time.Time{}
			lowest := func(rest time.Duration) (netip.Addr, bool) {
				for _, a := range all {
					if _, has := taken[a]; has {
						continue
					}
					if at, cooling := freed[a]; !cooling || time.Since(at) >= rest {
						return a, true
					}
				}
				return netip.Addr{}, false
			}
			for i := range 400 {
				synctest.Wait() // both leaders have seen everything
				s := leaders[rnd.IntN(2)].Store
				if held := slices.SortedFunc(maps.Keys(taken), netip.Addr.Compare); len(held) > 0 && rnd.IntN(5) < 2 {
					a := held[rnd.IntN(len(held))]
					mustFree(t, s, taken[a], a.String())
					delete(taken, a)
					freed[a] = time.Now()
					continue
				}
				// Times of frees are whole milliseconds.
				advance(time.Duration(rnd.Int64N(int64(time.Second/2))).Round(time.Millisecond) + time.Millisecond)
				want, ok := lowest(p.Cooldown())
				if !ok {
					want, ok = lowest(ipam.MinCooldown)
				}
				h := holderOn("node-"+string(rune('a'+rnd.IntN(9))), i)
				got, err := s.Take(t.Context(), p, Request{Holder: h})
				switch {
				case errors.Is(err, fault.ErrExhausted) && !ok:
				case err != nil:
					t.Fatal(err)
				case got[0].Addr != want:
					t.Fatalf("take %d: %s, the lowest is %s", i, got[0].Addr, want)
				default:
					taken[want] = h
				}
			}
		})
	}
}

// A pool with order Fifo uses up a block before it begins another: the number of blocks
// depends on how many pods there are, not on how many there have been.
func TestFifoUsesUpABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		p := shared(t, "fd00::/64")
		seen := map[string]bool{}
		for i := range 300 {
			got := mustTake(t, s.Store, p, holder(i))
			if i < 64 && seen[got[0]] {
				t.Errorf("%s is used again before all of the block were", got[0])
			}
			seen[got[0]] = true
			mustFree(t, s.Store, holder(i))
			advance(time.Second)
		}
		if len(seen) != 64 || len(api.List()) != 1 {
			t.Errorf("%d addresses of %d blocks for one pod at a time", len(seen), len(api.List()))
		}
	})
}
