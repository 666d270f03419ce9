package block

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// whereabouts#313, whereabouts#508: with one lock for the whole cluster and ten calls
// per address, pods that start together wait for minutes. Here they share writes, and
// nothing is read.
func TestStorm(t *testing.T) {
	tests := []struct {
		name  string
		pool  func(testing.TB, ...string) *ipam.Pool
		cidrs []string
		pods  int
		nodes int
	}{
		{"1,000 on 2 nodes", perNode, []string{"10.244.0.0/16"}, 1000, 2},
		{"10,000 on 20 nodes", perNode, []string{"10.244.0.0/16"}, 10000, 20},
		{"1,000 shared", shared, []string{"10.0.0.0/20"}, 1000, 5},
		{"10,000 shared", shared, []string{"10.0.0.0/16"}, 10000, 20},
		{"10,000 in the tightest pool", shared, []string{"10.0.0.0-10.0.39.15"}, 10000, 100},
		{"1,000 dual stack", perNode, []string{"10.244.0.0/16", "fd00:10::/64"}, 1000, 2},
		{"10,000 in an IPv6 /64", shared, []string{"fd00::/64"}, 10000, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				api.Hook(slow(2 * time.Millisecond))
				s := run(t, api, Config{})
				feedAll(t, api, s.Store)
				p := tt.pool(t, tt.cidrs...)
				got, errs := takeAll(t, s.Store, p, holders(tt.pods, tt.nodes))
				n := tt.pods * len(p.Families())
				if len(got) != n || len(errs) > 0 {
					t.Fatalf("%d addresses, want %d; errors: %v", len(got), n, errs)
				}
				if perTake := float64(api.Writes()) / float64(n); perTake > 0.05 {
					t.Errorf("%d writes, %.3f for each address, want 0.05 at most", api.Writes(), perTake)
				}
				if reads := api.Calls("get"); reads > 0 {
					t.Errorf("%d reads, want none", reads)
				}
				if diff := cmp.Diff(got, stored(t, api), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("stored (-returned +stored):\n%s", diff)
				}
			})
		})
	}
}

func TestSteadyStateIsOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := perNode(t, "10.244.0.0/16")
		for i := range 70 {
			mustTake(t, s.Store, p, holder(i))
			if api.Writes() != i+1 || api.Calls("get") != 0 {
				t.Fatalf("%d writes, %d reads after %d takes", api.Writes(), api.Calls("get"), i+1)
			}
		}
		if api.Calls("create") != 2 {
			t.Errorf("%d blocks for 70 addresses", api.Calls("create"))
		}
		for i := range 70 {
			mustFree(t, s.Store, holder(i))
		}
		if api.Writes() != 140 || api.Calls("get") != 0 {
			t.Errorf("%d writes and %d reads in 70 lives one after the other", api.Writes(), api.Calls("get"))
		}
	})
}

// Takes at the same time share one write, even if it is the first write of the block.
func TestAskedAtOnceIsWrittenTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the scheduling order does not depend on the machine
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := perNode(t, "10.244.0.0/16")
		var takes sync.WaitGroup
		for i := range 30 {
			takes.Go(func() { mustTake(t, s.Store, p, holder(i)) })
		}
		takes.Wait()
		if n := api.Writes(); n != 1 {
			t.Errorf("%d writes for 30 takes at once, want 1", n)
		}
	})
}

// Takes that arrive while a write waits for its turn share this write. A finished write
// gives its turn back.
func TestAskedBeforeItsTurnIsWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		turn := make(chan struct{}, 1)
		s := run(t, api, Config{Turn: func(ctx context.Context) func() {
			select {
			case turn <- struct{}{}:
				return func() { <-turn }
			case <-ctx.Done():
				return func() {}
			}
		}})
		p := perNode(t, "10.244.0.0/16")
		var takes sync.WaitGroup
		for round := range 2 {
			turn <- struct{}{} // the turn of another caller
			for i := range 30 {
				takes.Go(func() { mustTake(t, s.Store, p, holder(100*round+i)) })
				synctest.Wait() // let each take arrive alone
			}
			if n := api.Writes(); n != round {
				t.Fatalf("%d writes before the turn of write %d", n, round)
			}
			<-turn
			takes.Wait()
			synctest.Wait()
			if n := api.Writes(); n != round+1 || len(turn) != 0 {
				t.Errorf("%d writes for %d times 30 takes, want one each; %d turns not given back", n, round+1, len(turn))
			}
		}
	})
}

func TestTakeIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Millisecond))
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/24", "fd00::/120")
		var mu sync.Mutex
		var answers [][]string
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				got := mustTake(t, s.Store, p, holder(1))
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, got)
			})
		}
		wg.Wait()
		writes := api.Writes()
		answers = append(answers, mustTake(t, s.Store, p, holder(1)))
		for _, a := range answers {
			if diff := cmp.Diff(answers[0], a); diff != "" || len(a) != 2 {
				t.Errorf("answers differ:\n%s", diff)
			}
		}
		if api.Writes() != writes || len(stored(t, api)) != 2 {
			t.Errorf("%d writes more for a holder that has its addresses; stored: %v", api.Writes()-writes, stored(t, api))
		}
		// The next leader finds the addresses too.
		next := run(t, api, Config{})
		feedAll(t, api, next.Store)
		if diff := cmp.Diff(answers[0], mustTake(t, next.Store, p, holder(1))); diff != "" {
			t.Errorf("after a restart (-before +after):\n%s", diff)
		}
	})
}

// Many takes of one holder run at the same time, and the first gets the last address of
// a block. The others get no address of the next block.
func TestOneAddressPerHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.0/25"}, UseEdges: true})
		takeAll(t, s.Store, p, holders(64, 1)[1:])
		api.Hook(slow(time.Millisecond))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { mustTake(t, s.Store, p, holderOn("node-0", 100)) })
		}
		wg.Wait()
		onePerHolder(t, stored(t, api))
		if len(api.List()) != 1 {
			t.Errorf("%d blocks", len(api.List()))
		}
	})
}

func TestExhaustionIsExact(t *testing.T) {
	for _, cidrs := range [][]string{
		{"10.0.0.0/24"},
		{"10.0.0.7"},
		{"10.0.0.61-10.0.0.67", "10.0.3.0/31"},
		{"10.0.0.0/23"},
		{"fd00::3f-fd00::80"},
	} {
		for _, kind := range []func(testing.TB, ...string) *ipam.Pool{shared, perNode} {
			p := kind(t, cidrs...)
			t.Run(fmt.Sprintf("%v per node %v", cidrs, p.PerNode()), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := blocktest.NewAPI()
					api.Hook(slow(time.Millisecond))
					s := run(t, api, Config{})
					want := int(p.Usable())
					got, errs := takeAll(t, s.Store, p, holders(want+7, 1))
					if len(got) != want || len(errs) != 7 || !all(errs, fault.ErrExhausted) {
						t.Fatalf("%d addresses of %d, errors: %v", len(got), want, errs)
					}
					counts := fmt.Sprintf("usable=%d free=0 allocated=%d cooling=0 held=0 reserved=0", want, want)
					_, err := s.Take(t.Context(), p, Request{Holder: holder(99999)})
					if err == nil || !strings.Contains(err.Error(), counts) || !strings.Contains(err.Error(), "pool pods") {
						t.Errorf("error %v, want %s", err, counts)
					}
				})
			})
		}
	}
}

// Two pools that overlap in one block hand out addresses of it at the same time.
func TestOverlappingPoolsShareBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Millisecond))
		s := run(t, api, Config{})
		a := pool(t, ipam.PoolSpec{Name: "a", Ranges: []string{"10.0.0.0-10.0.0.39"}})
		b := pool(t, ipam.PoolSpec{Name: "b", Ranges: []string{"10.0.0.32-10.0.0.63"}})
		var wg sync.WaitGroup
		var gotA, gotB map[netip.Addr]ipam.Holder
		wg.Go(func() { gotA, _ = takeAll(t, s.Store, a, holders(100, 1)[:50]) })
		wg.Go(func() { gotB, _ = takeAll(t, s.Store, b, holders(100, 1)[50:]) })
		wg.Wait()
		if len(gotA)+len(gotB) != 64 {
			t.Errorf("%d and %d addresses of 64", len(gotA), len(gotB))
		}
		for x := range gotA {
			if _, both := gotB[x]; both {
				t.Errorf("%s is given away by both pools", x)
			}
		}
		for p, got := range map[*ipam.Pool]map[netip.Addr]ipam.Holder{a: gotA, b: gotB} {
			for x := range got {
				if !p.Allows(x) {
					t.Errorf("pool %s gave %s away", p.Name(), x)
				}
			}
		}
	})
}

func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26")
		for i := range 10 {
			mustTake(t, s.Store, p, holder(i))
		}
		writes := api.Writes()

		start := time.Now()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { mustFree(t, s.Store, holder(i)) })
		}
		wg.Wait()
		if took := time.Since(start); took != 200*time.Millisecond || api.Writes() != writes+1 {
			t.Errorf("5 frees took %s and %d writes, want 200ms and one", took, api.Writes()-writes)
		}

		start = time.Now()
		wg.Go(func() { mustFree(t, s.Store, holder(5)) })
		synctest.Wait()
		mustTake(t, s.Store, p, holder(20))
		wg.Wait()
		if took := time.Since(start); took != 0 || api.Writes() != writes+2 {
			t.Errorf("free and take took %s and %d writes, want no time and one", took, api.Writes()-writes-1)
		}
	})
}

func TestNoLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{FreeLinger: -1})
		mustTake(t, s.Store, shared(t, "10.0.0.0/26"), holder(1))
		start := time.Now()
		mustFree(t, s.Store, holder(1))
		if took := time.Since(start); took != 0 {
			t.Errorf("free took %s", took)
		}
	})
}

func TestCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{})
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2"}, Cooldown: time.Minute})
		first := mustTake(t, s.Store, p, holder(1))
		mustFree(t, s.Store, holder(1))
		freed := time.Now()
		if got := s.Counts(p); got.Cooling != 1 || got.Free != 1 {
			t.Errorf("counts after a free: %v", got)
		}
		if second := mustTake(t, s.Store, p, holder(2)); slices.Equal(first, second) {
			t.Errorf("%v is reused while another is free", first)
		}
		// The pool is exhausted, so the cooldown is shortened to 5 seconds.
		var err error
		for ; err == nil || errors.Is(err, fault.ErrExhausted); advance(100 * time.Millisecond) {
			_, err = s.Take(t.Context(), p, Request{Holder: holder(3)})
			if err == nil {
				break
			}
			if !strings.Contains(err.Error(), "cooling=1") {
				t.Fatal(err)
			}
		}
		if took := time.Since(freed); took < 4800*time.Millisecond || took > 5*time.Second {
			t.Errorf("reused %s after the free was written (200ms after it was stamped)", took)
		}
	})
}

func TestFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		one, two := mustTake(t, s.Store, p, holder(1)), mustTake(t, s.Store, p, holder(2))
		writes := api.Writes()

		// Frees of another holder's addresses, of unknown blocks, in another domain and
		// by a holder without addresses change nothing.
		mustFree(t, s.Store, holder(1), two...)
		mustFree(t, s.Store, holder(1), "10.9.9.9", "fd99::1")
		mustFree(t, s.Store, holder(9))
		if err := s.Free(t.Context(), holder(1), "other", []netip.Addr{netip.MustParseAddr(one[0]), {}}); err != nil {
			t.Error(err)
		}
		if api.Writes() != writes || len(stored(t, api)) != 4 {
			t.Fatalf("%d writes; stored: %v", api.Writes()-writes, stored(t, api))
		}
		mustFree(t, s.Store, holder(1), one[0])
		if got := addrsOf(s.Held(holder(1))); !slices.Equal(got, one[1:]) {
			t.Errorf("still held: %v, want %v", got, one[1:])
		}
		// A UID without the right namespace identifies no holder. The node is not part
		// of the identity.
		borrowed := holder(1)
		borrowed.Namespace = "other"
		mustFree(t, s.Store, borrowed, one...)
		if got := addrsOf(s.Held(holder(1))); !slices.Equal(got, one[1:]) {
			t.Errorf("after a free for the UID in another namespace: still held: %v, want %v", got, one[1:])
		}
		mustFree(t, s.Store, holderOn("elsewhere", 1))
		mustFree(t, s.Store, holder(1), one...)
		if got := s.Held(holder(1)); got != nil {
			t.Errorf("still held: %v", got)
		}
		if diff := cmp.Diff(inMemory(s.Store), stored(t, api), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("(-memory +stored):\n%s", diff)
		}
		// The store forgets blocks that it only looked up.
		if n := len(s.known.blocks); n != 2 {
			t.Errorf("%d blocks are remembered: %v", n, slices.Collect(maps.Keys(s.known.blocks)))
		}
	})
}

func TestFreeThenTakeOfOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26")
		before := mustTake(t, s.Store, p, holder(1))
		var wg sync.WaitGroup
		wg.Go(func() { mustFree(t, s.Store, holder(1), before...) })
		synctest.Wait()
		after := mustTake(t, s.Store, p, holder(1))
		wg.Wait()
		taken := stored(t, api)
		if _, ok := taken[netip.MustParseAddr(after[0])]; !ok || len(taken) != 1 {
			t.Errorf("returned %v, stored %v", after, taken)
		}
	})
}

func TestRequestedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.0/24", "fd00::/120"}, Gateways: []string{"10.0.0.1"}})
		got := mustTake(t, s.Store, p, holder(1), "10.0.0.200")
		if len(got) != 2 || got[0] != "10.0.0.200" {
			t.Fatalf("got %v", got)
		}
		if diff := cmp.Diff(got, mustTake(t, s.Store, p, holder(1), "10.0.0.200")); diff != "" {
			t.Errorf("again (-first +second):\n%s", diff)
		}
		tests := []struct {
			name   string
			holder ipam.Holder
			addrs  []string
			want   error
			text   string
		}{
			{"held", holder(2), []string{"10.0.0.200"}, fault.ErrConflict, "is held by default/web-1/eth0"},
			{"outside", holder(2), []string{"10.0.1.1"}, fault.ErrInvalid, "10.0.1.1 is in no range of pool pods"},
			{"gateway", holder(2), []string{"10.0.0.1"}, fault.ErrInvalid, "gateway"},
			{"two of a family", holder(2), []string{"10.0.0.5", "10.0.0.6"}, fault.ErrInvalid, "at most one per family"},
			{"has another", holder(1), []string{"10.0.0.201"}, fault.ErrConflict, "already has 10.0.0.200"},
			{"bad holder", ipam.Holder{PodUID: "a b", Interface: "eth0"}, nil, fault.ErrInvalid, "pod UID"},
		}
		for _, tt := range tests {
			r := Request{Holder: tt.holder}
			for _, a := range tt.addrs {
				r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
			}
			_, err := s.Take(t.Context(), p, r)
			if !errors.Is(err, tt.want) || !strings.Contains(fmt.Sprint(err), tt.text) {
				t.Errorf("%s: %v, want %v ... %s", tt.name, err, tt.want, tt.text)
			}
		}
		if n := len(stored(t, api)); n != 2 {
			t.Errorf("%d addresses are stored, want 2: a failed take left something", n)
		}
		// The address is released by another store. This store's memory is outdated,
		// and the API decides. The address cools down from the moment when this process
		// has seen it free, since the other store's clock may be wrong.
		other := run(t, api, Config{})
		api.NewFeed(other.Store).Deliver(-1)
		mustFree(t, other.Store, holder(1))
		advance(6 * time.Second)
		_, err := s.Take(t.Context(), p, Request{Holder: holder(2), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.200")}})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "was released less than 5s ago") {
			t.Errorf("Take() = %v", err)
		}
		advance(5 * time.Second)
		if got := mustTake(t, s.Store, p, holder(2), "10.0.0.200"); got[0] != "10.0.0.200" {
			t.Errorf("got %v", got)
		}
	})
}

// A request that cannot be met and another take arrive during a write. The failure of
// the request does not affect the take.
func TestConflictAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26")
		held := mustTake(t, s.Store, p, holder(1))
		api.Hook(slow(time.Second))
		var wg sync.WaitGroup
		wg.Go(func() { mustTake(t, s.Store, p, holder(2)) })
		synctest.Wait()
		wg.Go(func() {
			_, err := s.Take(t.Context(), p, Request{Holder: holder(3), Addresses: []netip.Addr{netip.MustParseAddr(held[0])}})
			if !errors.Is(err, fault.ErrConflict) {
				t.Errorf("Take(%s) = %v", held[0], err)
			}
		})
		wg.Go(func() { mustTake(t, s.Store, p, holder(4)) })
		wg.Wait()
		if n := len(stored(t, api)); n != 3 {
			t.Errorf("%d addresses are stored, want 3", n)
		}
	})
}

// A take whose caller has stopped waiting takes nothing, unless it was written already.
func TestCanceledTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Second))
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		var wg sync.WaitGroup
		wg.Go(func() { mustTake(t, s.Store, p, holder(1)) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := s.Take(ctx, p, Request{Holder: holder(2)})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, fault.ErrUnavailable) || time.Since(start) != time.Millisecond {
			t.Errorf("Take() = %v after %s", err, time.Since(start))
		}
		// Another call for the same holder waits no longer than its context allows.
		ctx2, cancel2 := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel2()
		if err := s.Free(ctx2, holder(2), "default", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Free() = %v", err)
		}
		wg.Wait()
		advance(time.Minute)
		if n := len(stored(t, api)); n != 2 {
			t.Errorf("%d addresses are stored, want 2", n)
		}
	})
}

func TestPerNodeNeedsNode(t *testing.T) {
	s := New(blocktest.NewAPI(), Config{})
	_, err := s.Take(t.Context(), perNode(t, "10.0.0.0/24"), Request{Holder: holderOn("", 1)})
	if !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Take() = %v", err)
	}
}
