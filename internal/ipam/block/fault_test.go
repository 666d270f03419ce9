package block

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

func forbidden() error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("ipblocks").GroupResource(), "x", errors.New("no"))
}

// In a storm, every seventh call fails without effect, loses its reply or loses a race.
func TestStormWithFaults(t *testing.T) {
	faults := map[string]func(*blocktest.API, blocktest.Call) blocktest.Fault{
		"lost replies": func(*blocktest.API, blocktest.Call) blocktest.Fault {
			return blocktest.Fault{After: blocktest.ErrLost}
		},
		"server errors": func(*blocktest.API, blocktest.Call) blocktest.Fault {
			return blocktest.Fault{Before: apierrors.NewInternalError(errors.New("etcd"))}
		},
		"too many requests": func(*blocktest.API, blocktest.Call) blocktest.Fault {
			return blocktest.Fault{Before: apierrors.NewTooManyRequests("slow down", 1)}
		},
		"replies after the timeout": func(*blocktest.API, blocktest.Call) blocktest.Fault {
			return blocktest.Fault{AfterDelay: 2 * callTimeout}
		},
		"effects after the timeout": func(*blocktest.API, blocktest.Call) blocktest.Fault {
			return blocktest.Fault{Delay: 2 * callTimeout}
		},
		"another writer": func(api *blocktest.API, c blocktest.Call) blocktest.Fault {
			touch(api, c.Name)
			return blocktest.Fault{}
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				api.Hook(func(c blocktest.Call) blocktest.Fault {
					if c.N%7 == 3 {
						return fault(api, c)
					}
					return blocktest.Fault{Delay: 2 * time.Millisecond}
				})
				s := run(t, api, Config{})
				feedAll(t, api, s.Store)
				p := perNode(t, "10.244.0.0/18", "fd00:10::/64")
				got, errs := takeAll(t, s.Store, p, holders(1000, 3))
				if len(got) != 2000 || len(errs) > 0 {
					t.Fatalf("%d addresses, errors: %v", len(got), errs)
				}
				synctest.Wait()
				taken := stored(t, api)
				if diff := cmp.Diff(got, taken, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("stored (-returned +stored):\n%s", diff)
				}
				onePerHolder(t, taken)
				var wg sync.WaitGroup
				for _, h := range holders(1000, 3) {
					wg.Go(func() { mustFree(t, s.Store, h) })
				}
				wg.Wait()
				if left := stored(t, api); len(left) > 0 || len(inMemory(s.Store)) > 0 {
					t.Errorf("%d addresses are left after all were freed", len(left))
				}
			})
		})
	}
}

// touch writes a block unchanged, as another writer: its resource version changes.
func touch(api *blocktest.API, name string) {
	for _, obj := range api.List() {
		if obj.Name == name {
			api.Put(obj)
		}
	}
}

// The takes of a block that is always contended go to another block.
func TestContendedBlockIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/24")
		first := mustTake(t, s.Store, p, holder(1))
		contended := ipam.BlockName("default", ipam.BlockOf(netip.MustParseAddr(first[0])))
		races := 0
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			if c.Verb == "update" && c.Name == contended {
				races++
				touch(api, contended)
			}
			return blocktest.Fault{}
		})
		start := time.Now()
		second := mustTake(t, s.Store, p, holder(2))
		if ipam.BlockOf(netip.MustParseAddr(second[0])) == ipam.BlockOf(netip.MustParseAddr(first[0])) {
			t.Errorf("%v is from the contended block", second)
		}
		if took := time.Since(start); races != maxConflicts+1 || took == 0 || took > time.Second {
			t.Errorf("%d lost races in %s", races, took)
		}
		onePerHolder(t, stored(t, api))
	})
}

// The API fails until the caller gives up. The next take finds the effect of the failed
// one.
func TestUnknownOutcomeIsFound(t *testing.T) {
	for _, how := range []blocktest.Fault{{After: blocktest.ErrLost}, {Before: blocktest.ErrLost}, {AfterDelay: time.Hour}} {
		t.Run(fmt.Sprintf("%+v", how), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				s := run(t, api, Config{})
				p := shared(t, "10.0.0.0/22")
				for i := range 3 {
					// The node's last block differs from the block of the failure.
					mustTake(t, s.Store, p, holderOn("node-2", 100+i))
				}
				api.Hook(func(c blocktest.Call) blocktest.Fault {
					if c.Verb == "get" {
						return blocktest.Fault{Before: errors.New("still away")}
					}
					return how
				})
				ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
				defer cancel()
				_, err := s.Take(ctx, p, Request{Holder: holder(1)})
				if !errors.Is(err, fault.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("Take() = %v", err)
				}
				if !strings.Contains(err.Error(), "block default.4-0a00") || how.AfterDelay == 0 && !strings.Contains(err.Error(), "still away") {
					t.Errorf("the error does not say why: %v", err)
				}
				advance(time.Minute)
				api.Hook(nil)
				got := mustTake(t, s.Store, p, holder(1))
				taken := stored(t, api)
				onePerHolder(t, taken)
				if !taken[netip.MustParseAddr(got[0])].Same(holder(1)) {
					t.Errorf("returned %v, stored %v", got, taken)
				}
				if len(s.known.doubts) > 0 {
					t.Errorf("doubts are left: %v", s.known.doubts)
				}
				mustFree(t, s.Store, holder(1))
				if _, ok := stored(t, api)[netip.MustParseAddr(got[0])]; ok {
					t.Errorf("%v is still stored", got)
				}
			})
		})
	}
}

// Free finds the address of a take with an unknown outcome.
func TestFreeAfterUnknownTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		away := true
		api.Hook(func(blocktest.Call) blocktest.Fault {
			if away {
				return blocktest.Fault{After: blocktest.ErrLost}
			}
			return blocktest.Fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Take(ctx, shared(t, "10.0.0.0/24"), Request{Holder: holder(1)}); err == nil {
			t.Fatal("no error")
		}
		if len(stored(t, api)) != 1 {
			t.Fatal("the test wants a take that was done")
		}
		advance(time.Minute)
		away = false
		mustFree(t, s.Store, holder(1))
		if left := stored(t, api); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestRefusedCallsFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/24")
		api.Hook(func(blocktest.Call) blocktest.Fault { return blocktest.Fault{Before: forbidden()} })
		start := time.Now()
		_, err := s.Take(t.Context(), p, Request{Holder: holder(1)})
		if !errors.Is(err, fault.ErrUnavailable) || !apierrors.IsForbidden(err) || time.Since(start) > 0 {
			t.Errorf("Take() = %v after %s", err, time.Since(start))
		}
		err = s.Free(t.Context(), holder(1), "default", []netip.Addr{netip.MustParseAddr("10.0.0.1")})
		if !errors.Is(err, fault.ErrUnavailable) || time.Since(start) > time.Second {
			t.Errorf("Free() = %v after %s", err, time.Since(start))
		}
		api.Hook(nil)
		mustTake(t, s.Store, p, holder(1))
	})
}

func TestDualStackTakesNoHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/29", "fd00::1-fd00::2")
		for i := range 2 {
			mustTake(t, s.Store, p, holder(i))
		}
		writes := api.Writes()
		_, err := s.Take(t.Context(), p, Request{Holder: holder(9)})
		if !errors.Is(err, fault.ErrExhausted) || !strings.Contains(err.Error(), "no IPv6 address") || api.Writes() != writes {
			t.Errorf("Take() = %v with %d writes", err, api.Writes()-writes)
		}
	})
}

// The second family fails after the first was written. The holder keeps the address of
// the first, which another leader may have found, and its next take returns it.
func TestDualStackKeepsHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/24", "fd00::/120")
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			if c.Verb == "create" && strings.Contains(c.Name, ".6-") {
				return blocktest.Fault{Before: forbidden()}
			}
			return blocktest.Fault{}
		})
		for range 3 {
			if _, err := s.Take(t.Context(), p, Request{Holder: holder(1)}); !errors.Is(err, fault.ErrUnavailable) {
				t.Fatalf("Take() = %v", err)
			}
			if left := stored(t, api); len(left) != 1 {
				t.Fatalf("want the IPv4 address: %v", left)
			}
		}
		api.Hook(nil)
		if got := mustTake(t, s.Store, p, holder(1)); len(got) != 2 || len(stored(t, api)) != 2 {
			t.Errorf("Take() = %v; stored: %v", got, stored(t, api))
		}
	})
}

// TestCrash stops the store before and after every call to the API in a sequence of
// takes and frees. The next store over the same API continues: no address is handed out
// twice, none is lost.
func TestCrash(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			crashed := false
			t.Run(fmt.Sprintf("call %d, after the effect %v", n, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { crashed = crashAt(t, n, after) })
			})
			if !crashed {
				break
			}
		}
	}
}

// crashAt returns false if the sequence has no n-th call.
func crashAt(t *testing.T, n int, after bool) bool {
	t.Helper()
	api := blocktest.NewAPI()
	p := perNode(t, "10.0.0.0/24", "fd00::/120")
	var crashed bool
	ctx, cancel := context.WithCancel(t.Context())
	api.Hook(func(c blocktest.Call) blocktest.Fault {
		if c.N != n {
			return blocktest.Fault{}
		}
		crashed = true
		cancel()
		if after {
			return blocktest.Fault{After: context.Canceled}
		}
		return blocktest.Fault{Before: context.Canceled}
	})
	returned := map[int][]string{}
	story := func(ctx context.Context, s *Store) {
		for i := range 6 {
			leases, err := s.Take(ctx, p, Request{Holder: holderOn(fmt.Sprint("node-", i%2), i)})
			if err != nil {
				return
			}
			if was := returned[i]; was != nil && !slices.Equal(was, addrsOf(leases)) {
				t.Errorf("holder %d got %v, now %v", i, was, addrsOf(leases))
			}
			returned[i] = addrsOf(leases)
		}
		for i := range 3 {
			// A failed free may have freed some of the addresses.
			delete(returned, i)
			if s.Free(ctx, holder(i), "default", nil) != nil {
				return
			}
		}
	}
	first := New(api, Config{})
	done := make(chan error)
	go func() { done <- first.Run(ctx) }()
	story(ctx, first)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}

	api.Hook(nil)
	next := run(t, api, Config{})
	feedAll(t, api, next.Store)
	story(t.Context(), next.Store)
	taken := stored(t, api)
	onePerHolder(t, taken)
	if len(taken) != 6 {
		t.Errorf("%d addresses are stored, want those of 3 holders: %v", len(taken), taken)
	}
	for i := 3; i < 6; i++ {
		for _, a := range returned[i] {
			if !taken[netip.MustParseAddr(a)].Same(holder(i)) {
				t.Errorf("holder %d got %s, stored is %v", i, a, taken)
			}
		}
	}
	return crashed
}

// TestTwoStores runs two stores on one API, as two leaders, with feeds of random lag.
// No address is ever given to two live holders, and each holder has the addresses that
// its take returned.
func TestTwoStores(t *testing.T) {
	for seed := range uint64(20) {
		for _, kind := range []func(testing.TB, ...string) *ipam.Pool{shared, perNode} {
			p := kind(t, "10.0.0.0/26", "10.0.1.0-10.0.1.100")
			t.Run(fmt.Sprintf("seed %d, per node %v", seed, p.PerNode()), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { twoStores(t, seed, p) })
			})
		}
	}
}

// rivals has the addresses that the two stores returned, and the holders with a call
// under way.
type rivals struct {
	mu   sync.Mutex
	live map[string]ipam.Holder
	busy map[int]bool
}

func twoStores(t *testing.T, seed uint64, p *ipam.Pool) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	api := blocktest.NewAPI()
	api.Hook(func(c blocktest.Call) blocktest.Fault {
		f := blocktest.Fault{Delay: time.Duration(c.N*7%5) * time.Millisecond}
		if c.N%11 == 4 {
			f.After = blocktest.ErrLost
		}
		return f
	})
	stores := []*Store{run(t, api, Config{}).Store, run(t, api, Config{}).Store}
	feeds := []*blocktest.Feed{api.NewFeed(stores[0]), api.NewFeed(stores[1])}
	r := &rivals{live: map[string]ipam.Holder{}, busy: map[int]bool{}}
	var wg sync.WaitGroup
	for range 800 {
		i, s := rnd.IntN(150), stores[rnd.IntN(2)]
		feeds[rnd.IntN(2)].Deliver(rnd.IntN(3))
		if rnd.IntN(10) == 0 {
			advance(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		}
		free := rnd.IntN(2) == 0
		wg.Go(func() { r.act(t, s, p, i, free) })
	}
	wg.Wait()
	onePerStored := stored(t, api)
	for a, h := range r.live {
		if !onePerStored[netip.MustParseAddr(a)].Same(h) {
			t.Errorf("%s got %s, stored is %v", h, a, onePerStored[netip.MustParseAddr(a)])
		}
	}
}

// act takes or frees for one holder. One controller at a time handles a pod, so a
// holder has one call at a time.
func (r *rivals) act(t *testing.T, s *Store, p *ipam.Pool, i int, free bool) {
	t.Helper()
	h := holderOn(fmt.Sprint("node-", i%2), i)
	r.mu.Lock()
	if r.busy[i] {
		r.mu.Unlock()
		return
	}
	r.busy[i] = true
	defer func() { r.mu.Lock(); r.busy[i] = false; r.mu.Unlock() }()
	var mine []netip.Addr
	for a, has := range r.live {
		if has.Same(h) {
			mine = append(mine, netip.MustParseAddr(a))
			if free {
				// The holder stops using the address before the free.
				delete(r.live, a)
			}
		}
	}
	r.mu.Unlock()
	if free {
		if len(mine) > 0 {
			if err := s.Free(t.Context(), h, "default", mine); err != nil {
				t.Errorf("Free for %s: %v", h, err)
			}
		}
		return
	}
	leases, err := s.Take(t.Context(), p, Request{Holder: h})
	if err != nil {
		if !errors.Is(err, fault.ErrExhausted) {
			t.Errorf("Take for %s: %v", h, err)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range leases {
		if has, ok := r.live[l.Addr.String()]; ok && !has.Same(h) {
			t.Errorf("%s is given to %s and to %s", l.Addr, has, h)
		}
		r.live[l.Addr.String()] = h
	}
}
