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

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

const claim = "default/web-0"

func mustClaim(tb testing.TB, s *Store, p *ipam.Pool, h ipam.Holder) []string {
	tb.Helper()
	got, err := s.Take(tb.Context(), p, Request{Holder: h, Claim: claim})
	if err != nil {
		tb.Fatalf("Take for %s with the claim: %v", h, err)
	}
	return addrsOf(got)
}

// whereabouts#138, #288, #621: a pod that returns under the same name expects the
// addresses that it had. whereabouts#176, #182, #446: also on another node, and not
// before the previous pod has given them back.
func TestClaimKeepsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		first := mustClaim(t, s.Store, p, holderOn("node-1", 1))

		_, err := s.Take(t.Context(), p, Request{Holder: holderOn("node-2", 2), Claim: claim})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), holderOn("node-1", 1).String()) {
			t.Fatalf("while the first has them: %v", err)
		}
		_, err = s.Take(t.Context(), p, Request{Holder: holder(9), Claim: claim, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.50")}})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), first[0]) || !strings.Contains(err.Error(), holderOn("node-1", 1).String()) {
			t.Errorf("another address is requested while a pod has the claim's: %v", err)
		}
		mustFree(t, s.Store, holderOn("node-1", 1))
		if c := s.Counts(p); c.Held != 2 || c.Allocated != 0 || c.Cooling != 0 {
			t.Errorf("counts of held addresses: %v", c)
		}
		for i := range 5 {
			mustTake(t, s.Store, p, holder(100+i))
		}
		_, err = s.Take(t.Context(), p, Request{Holder: holder(9), Addresses: []netip.Addr{netip.MustParseAddr(first[0])}})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), claim) {
			t.Errorf("another asks for the held address: %v", err)
		}
		// Another store, which only knows the blocks, gives the same addresses.
		other := run(t, api, Config{})
		feedAll(t, api, other.Store)
		if again := mustClaim(t, other.Store, p, holderOn("node-2", 2)); !slices.Equal(again, first) {
			t.Errorf("the claim had %v and got %v", first, again)
		}
		if again := mustClaim(t, other.Store, p, holderOn("node-2", 2)); !slices.Equal(again, first) {
			t.Errorf("asked again, the holder of %v got %v", first, again)
		}
		got := other.Claimed(claim)
		if len(got) != 2 || got[0].Holder != holderOn("node-2", 2) || got[0].Claim != claim {
			t.Errorf("Claimed() = %+v", got)
		}
	})
}

// A claim without a pod moves to a requested address. The pod gets that address, the
// claim keeps it from then on, and the old address can be given up.
func TestClaimMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{})
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		first := mustClaim(t, s.Store, p, holder(1))
		mustFree(t, s.Store, holder(1))
		asked := Request{Holder: holder(2), Claim: claim, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.50")}}
		got, err := s.Take(t.Context(), p, asked)
		if want := []string{"10.0.0.50", first[1]}; err != nil || !slices.Equal(addrsOf(got), want) {
			t.Fatalf("got %v, error %v, want %v", addrsOf(got), err, want)
		}
		for _, l := range s.Claimed(claim) {
			if l.Holder == (ipam.Holder{}) {
				if err := s.Unhold(t.Context(), l); err != nil {
					t.Error(err)
				}
			}
		}
		if c := s.Counts(p, ipam.IPv4); c.Cooling != 1 || c.Held != 0 {
			t.Errorf("the old address does not cool down: %v", c)
		}
		mustFree(t, s.Store, holder(2))
		if again := mustClaim(t, s.Store, p, holder(3)); !slices.Equal(again, addrsOf(got)) {
			t.Errorf("the claim had %v, and its next pod got %v", addrsOf(got), again)
		}
	})
}

func TestUnhold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{})
		p := shared(t, "10.0.0.1-10.0.0.2")
		mustClaim(t, s.Store, p, holder(1))
		unhold := func(l Lease) {
			t.Helper()
			if err := s.Unhold(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
		has := func() Lease { return s.Claimed(claim)[0] }
		// Unhold changes nothing if the address has a holder, is held for another
		// claim, or the block is unknown.
		unhold(has())
		if c := s.Counts(p); c.Allocated != 1 {
			t.Fatalf("counts %v", c)
		}
		mustFree(t, s.Store, holder(1))
		first := has()
		other, unknown := first, first
		other.Claim, unknown.Block = "default/other", "default.4-0a090900"
		unhold(other)
		unhold(unknown)
		// The next holder has taken and freed the address: the first holding is over.
		advance(time.Second)
		mustClaim(t, s.Store, p, holder(2))
		mustFree(t, s.Store, holder(2))
		unhold(first)
		if c := s.Counts(p); c.Held != 1 {
			t.Fatalf("counts %v", c)
		}
		unhold(has())
		if c := s.Counts(p); c.Held != 0 || c.Cooling != 1 || len(s.Claimed(claim)) != 0 {
			t.Errorf("counts %v, claimed %v", c, s.Claimed(claim))
		}
	})
}

// TestClaimOfAReservedAddress: a held address that is reserved is not handed out, and
// the claim's next holder gets another one.
func TestClaimOfAReservedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{})
		p := shared(t, "10.0.0.1-10.0.0.2")
		first := mustClaim(t, s.Store, p, holder(1))[0]
		mustFree(t, s.Store, holder(1))
		r, err := ipam.ParseReservation(ipam.DefaultDomain, []string{first})
		if err != nil {
			t.Fatal(err)
		}
		without := p.Without([]*ipam.Reservation{r})
		if next := mustClaim(t, s.Store, without, holder(2))[0]; next == first {
			t.Errorf("the reserved address %s is handed out", first)
		}
		if _, err := s.Take(t.Context(), without, Request{Holder: holder(3), Claim: claim}); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("a second holder of the claim: %v", err)
		}
	})
}

// TestClaimsAndPoolsPerNode: an address that is routed to one node cannot be kept for a
// pod that may return on another node.
func TestClaimsAndPoolsPerNode(t *testing.T) {
	s := run(t, blocktest.NewAPI(), Config{})
	_, err := s.Take(t.Context(), perNode(t, "10.0.0.0/24"), Request{Holder: holder(1), Claim: claim})
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "placement Shared") {
		t.Errorf("Take() = %v", err)
	}
	_, err = s.Take(t.Context(), shared(t, "10.0.0.0/24"), Request{Holder: holder(1), Claim: "two words"})
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "two words") {
		t.Errorf("Take() = %v", err)
	}
}

// TestClaimIsHeldAgainAfterAFailure: a dual-stack take that gets only one of its
// addresses keeps it, as another leader may have found it. After the free it is held
// for the claim.
func TestClaimIsHeldAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		v4 := shared(t, "10.0.0.0/26")
		first := mustClaim(t, s.Store, v4, holder(1))
		mustFree(t, s.Store, holder(1))
		// Another store takes the only IPv6 address, and this store does not know.
		both := shared(t, "10.0.0.0/26", "fd00::1")
		mustTake(t, run(t, api, Config{}).Store, both, holder(2))
		if got, err := s.Take(t.Context(), both, Request{Holder: holder(3), Claim: claim}); !errors.Is(err, fault.ErrExhausted) {
			t.Fatalf("Take() = %v, %v", addrsOf(got), err)
		}
		mustFree(t, s.Store, holder(3))
		if got := addrsOf(s.Claimed(claim)); !slices.Equal(got, first) {
			t.Errorf("the claim has %v, want %v", got, first)
		}
		if again := mustClaim(t, s.Store, v4, holder(4)); !slices.Equal(again, first) {
			t.Errorf("the claim had %v and got %v", first, again)
		}
	})
}

// TestClaimIsAskedForAgain: after a take of the claim's address with an unknown
// outcome, the holder's next take asks for the same address. An API server that has
// just started forbids the read that would tell the outcome.
func TestClaimIsAskedForAgain(t *testing.T) {
	for name, lost := range map[string]blocktest.Fault{"not done": {Before: blocktest.ErrLost}, "done": {After: blocktest.ErrLost}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				s := run(t, api, Config{})
				p := shared(t, "10.0.0.0/26", "fd00::/122")
				first := mustClaim(t, s.Store, p, holder(1))
				mustFree(t, s.Store, holder(1))
				// Without the claim, holder 3 would get another address than this.
				mustTake(t, s.Store, p, holder(2))
				api.Hook(func(c blocktest.Call) blocktest.Fault {
					if c.Verb == "get" {
						return blocktest.Fault{Before: forbidden()}
					}
					return lost
				})
				if _, err := s.Take(t.Context(), p, Request{Holder: holder(3), Claim: claim}); !errors.Is(err, fault.ErrUnavailable) {
					t.Fatalf("Take() = %v", err)
				}
				api.Hook(nil)
				if again := mustClaim(t, s.Store, p, holder(3)); !slices.Equal(again, first) {
					t.Errorf("the claim had %v and got %v", first, again)
				}
			})
		})
	}
}

// A store with an outdated state frees only the holding that its caller knew. If the
// same holder has taken the address again since, as a pod does whose record was deleted
// by hand, it stays taken (make sim SEED=5006).
func TestFreeLeavesWhatWasTakenSince(t *testing.T) {
	api := blocktest.NewAPI()
	ahead, behind := run(t, api, Config{FreeLinger: -1}), run(t, api, Config{FreeLinger: -1})
	p := shared(t, "10.0.0.0/24")
	r := Request{Holder: holder(1), Claim: "default/db-0"}
	take := func() string {
		got, err := ahead.Take(t.Context(), p, r)
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Addr.String()
	}
	was := take()
	for _, b := range api.List() {
		behind.Observe(b)
	}
	mustFree(t, ahead.Store, r.Holder, was)
	<-time.After(2 * time.Millisecond) // the times in slots are in milliseconds
	if now := take(); now != was {
		t.Fatalf("the claim had %s and has %s", was, now)
	}
	mustFree(t, behind.Store, r.Holder, was)
	if left := stored(t, api); len(left) != 1 {
		t.Errorf("the block has %v", left)
	}
	mustFree(t, behind.Store, r.Holder, was) // the store has read the block by now
	if left := stored(t, api); len(left) != 0 {
		t.Errorf("the block has %v", left)
	}
}

// TestClaimHasOneHolder: two stores, pods that come and go under few names, conflicts
// and lost replies. An address is never returned to two holders at a time, and through
// one store a claim never has two holders.
func TestClaimHasOneHolder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { claimRace(t, seed) })
		})
	}
}

func claimRace(t *testing.T, seed uint64) {
	api := blocktest.NewAPI()
	a, b := run(t, api, Config{FreeLinger: -1}), run(t, api, Config{FreeLinger: -1})
	feedAll(t, api, a.Store)
	feedAll(t, api, b.Store)
	api.Hook(func(c blocktest.Call) blocktest.Fault {
		f := blocktest.Fault{Delay: time.Duration(c.N%7) * time.Millisecond}
		if c.Verb == "update" && c.N%11 == 0 {
			f.After = blocktest.ErrLost
		}
		return f
	})
	p := shared(t, "10.0.0.0/26")
	rnd := rand.New(rand.NewPCG(seed, 11))
	var mu sync.Mutex
	has := map[netip.Addr]ipam.Holder{}
	var wg sync.WaitGroup
	for i := range 12 {
		s, name := []*running{a, b}[rnd.IntN(2)], fmt.Sprintf("default/web-%d", rnd.IntN(3))
		wait := time.Duration(rnd.IntN(40)) * time.Millisecond
		wg.Go(func() {
			advance(wait)
			h := holder(int(seed)*100 + i)
			leases := takeUntil(t.Context(), t, s.Store, p, Request{Holder: h, Claim: name})
			mu.Lock()
			for _, l := range leases {
				if other, ok := has[l.Addr]; ok {
					t.Errorf("%s is given to %s and to %s", l.Addr, other, h)
				}
				has[l.Addr] = h
			}
			mu.Unlock()
			advance(wait)
			mu.Lock()
			for _, l := range leases {
				delete(has, l.Addr)
			}
			mu.Unlock()
			mustFree(t, s.Store, h)
		})
	}
	wg.Wait()
	if left := stored(t, api); len(left) != 0 {
		t.Errorf("left taken: %v", left)
	}
	synctest.Wait() // until the feeds have delivered everything
	if c := a.Counts(p); c.Held == 0 || c.Free+c.Cooling+c.Held != c.Usable {
		t.Errorf("counts at the end: %v", c)
	}
}

// takeUntil repeats a take as the controller does.
func takeUntil(ctx context.Context, tb testing.TB, s *Store, p *ipam.Pool, r Request) []Lease {
	tb.Helper()
	for {
		leases, err := s.Take(ctx, p, r)
		if err == nil {
			return leases
		}
		if !errors.Is(err, fault.ErrConflict) && !errors.Is(err, fault.ErrUnavailable) {
			tb.Errorf("Take() = %v", err)
			return nil
		}
		advance(5 * time.Millisecond)
	}
}
