package block

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// migrating returns the request of the i-th launcher of a machine, beside others.
func migrating(i int, beside ...int) Request {
	r := Request{Holder: launcher(i), Claim: "default/vm1"}
	for _, n := range beside {
		r.Beside = append(r.Beside, launcher(n))
	}
	return r
}

func launcher(i int) ipam.Holder { return holderOn(fmt.Sprint("node-", i), i) }

// kubevirt#13709, kubevirt#14320: the target of a live migration gets the addresses of
// the source at once. Either may end first, and the other keeps them. A third launcher is
// refused, and so is a pod that does not launch the machine.
func TestMigration(t *testing.T) {
	for _, ends := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			api := blocktest.NewAPI()
			s := run(t, api, Config{})
			p := shared(t, "10.0.0.0/26", "fd00::/122")
			take := func(r Request) ([]string, error) {
				leases, err := s.Take(t.Context(), p, r)
				return addrsOf(leases), err
			}
			first, err := take(migrating(1))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := take(migrating(9)); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("another pod with the claim: %v", err)
			}
			for range 2 { // asked again, it gets the same
				if got, err := take(migrating(2, 1)); err != nil || !slices.Equal(got, first) {
					t.Fatalf("the target got %v, %v; the source has %v", got, err, first)
				}
			}
			if _, err := take(migrating(3, 1, 2)); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "and by default/web-2") {
				t.Errorf("a third launcher: %v", err)
			}
			if c := s.Counts(p); c.Allocated != 2 {
				t.Errorf("counts with two holders: %v", c)
			}
			if n := s.UsedBy("default", p, ""); n != 1 {
				t.Errorf("the namespace uses %d addresses of a family, want 1", n)
			}
			// A store that only knows the blocks knows both.
			other := run(t, api, Config{})
			feedAll(t, api, other.Store)
			for _, i := range []int{1, 2} {
				if got := addrsOf(other.Held(launcher(i))); !slices.Equal(got, first) {
					t.Errorf("launcher %d has %v, want %v", i, got, first)
				}
			}
			if n := len(other.Claimed("default/vm1")); n != 4 {
				t.Errorf("the claim has %d leases, want 4", n)
			}
			stays := 3 - ends
			mustFree(t, other.Store, launcher(ends))
			if got := addrsOf(other.Held(launcher(stays))); !slices.Equal(got, first) || len(other.Held(launcher(ends))) != 0 {
				t.Errorf("launcher %d has ended: %d has %v", ends, stays, got)
			}
			// The next migration begins.
			r := migrating(4, stays)
			got, err := other.Take(t.Context(), p, r)
			if err != nil || !slices.Equal(addrsOf(got), first) {
				t.Errorf("the next target got %v, %v", got, err)
			}
			mustFree(t, other.Store, launcher(stays))
			mustFree(t, other.Store, launcher(4))
			if c := other.Counts(p); c.Held != 2 || c.Allocated != 0 {
				t.Errorf("counts after all: %v", c)
			}
			if n := len(other.known.leases); n != 0 {
				t.Errorf("the index has %d holders", n)
			}
		})
	}
}

// The source has the address for longest, also if the clock of the controller that let the target
// join is behind: the claim's status names the source until it ends.
func TestMigrationBySlowClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		if _, err := run(t, api, Config{}).Take(t.Context(), p, migrating(1)); err != nil {
			t.Fatal(err)
		}
		behind := run(t, api, Config{Now: func() time.Time { return time.Now().Add(-time.Hour) }})
		feedAll(t, api, behind.Store)
		if _, err := behind.Take(t.Context(), p, migrating(2, 1)); err != nil {
			t.Fatal(err)
		}
		var has []string
		for _, l := range behind.Claimed("default/vm1") {
			has = append(has, l.Holder.Pod)
		}
		if want := []string{"web-1", "web-2", "web-1", "web-2"}; !slices.Equal(has, want) {
			t.Errorf("the claim's addresses are those of %v, the oldest first, want %v", has, want)
		}
	})
}

// The target asks for another address than the machine uses, or its source is on the same
// node: it is refused. A reserved address of the machine is given to the target.
func TestMigrationIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, blocktest.NewAPI(), Config{})
		p := shared(t, "10.0.0.0/26")
		got, err := s.Take(t.Context(), p, migrating(1))
		if err != nil {
			t.Fatal(err)
		}
		r := migrating(2, 1)
		r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.40")}
		if _, err := s.Take(t.Context(), p, r); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("another address: %v", err)
		}
		r = migrating(2, 1)
		r.Holder.Node = launcher(1).Node
		if _, err := s.Take(t.Context(), p, r); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("on one node: %v", err)
		}
		reserved, err := ipam.ParseReservation(ipam.DefaultDomain, []string{got[0].Addr.String()})
		if err != nil {
			t.Fatal(err)
		}
		without := p.Without([]*ipam.Reservation{reserved})
		r = migrating(2, 1)
		r.Now = func() *ipam.Pool { return without }
		if again, err := s.Take(t.Context(), p, r); err != nil || again[0].Addr != got[0].Addr {
			t.Errorf("a reserved address: %v, %v", again, err)
		}
	})
}

// TestMigrationCutOff cuts off every call of a migration, before and after its effect, and
// repeats the step until it succeeds, as the controller does. In the end only the launcher
// that lives has the address.
func TestMigrationCutOff(t *testing.T) {
	for _, after := range []bool{false, true} {
		for cut := range 12 {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				s := run(t, api, Config{FreeLinger: -1})
				p := shared(t, "10.0.0.0/26")
				api.Hook(func(c blocktest.Call) blocktest.Fault {
					switch {
					case c.N != cut:
						return blocktest.Fault{}
					case after:
						return blocktest.Fault{After: blocktest.ErrLost}
					default:
						return blocktest.Fault{Before: blocktest.ErrLost}
					}
				})
				first := takeUntil(t.Context(), t, s.Store, p, migrating(1))
				second := takeUntil(t.Context(), t, s.Store, p, migrating(2, 1))
				mustFree(t, s.Store, launcher(1))
				third := takeUntil(t.Context(), t, s.Store, p, migrating(3, 2))
				mustFree(t, s.Store, launcher(3)) // aborted
				if second[0].Addr != first[0].Addr || third[0].Addr != first[0].Addr {
					t.Errorf("cut %d: %v, %v, %v", cut, first, second, third)
				}
				has := stored(t, api)
				if len(has) != 1 || has[first[0].Addr] != launcher(2) {
					t.Errorf("cut %d: the block has %v", cut, has)
				}
			})
		}
	}
}

// TestMigrationRace runs migrations of three machines through two stores, with lost
// replies. An address has one holder, or two of one machine.
func TestMigrationRace(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			api := blocktest.NewAPI()
			stores := []*running{run(t, api, Config{FreeLinger: -1}), run(t, api, Config{FreeLinger: -1})}
			feedAll(t, api, stores[0].Store)
			feedAll(t, api, stores[1].Store)
			rnd := rand.New(rand.NewPCG(seed, 5))
			api.Hook(func(c blocktest.Call) blocktest.Fault {
				f := blocktest.Fault{Delay: time.Duration(c.N%5) * time.Millisecond}
				if c.Verb == "update" && c.N%7 == 0 {
					f.After = blocktest.ErrLost
				}
				return f
			})
			p := shared(t, "10.0.0.0/28")
			for machine := range 3 {
				for i := range 4 {
					n := machine*100 + i
					r := Request{Holder: launcher(n), Claim: fmt.Sprint("default/vm", machine)}
					if i > 0 {
						r.Beside = []ipam.Holder{launcher(n - 1)}
					}
					s := stores[rnd.IntN(2)]
					takeUntil(t.Context(), t, s.Store, p, r)
					synctest.Wait()
					checkShared(t, api)
					if i > 0 {
						mustFree(t, s.Store, launcher(n-1))
					}
				}
			}
			if has := stored(t, api); len(has) != 3 {
				t.Errorf("the block has %v", has)
			}
		})
	}
}

// checkShared checks that no two machines share an address.
func checkShared(t *testing.T, api *blocktest.API) {
	t.Helper()
	for _, o := range api.List() {
		b := ipam.DecodeBlock(netip.MustParsePrefix(o.Spec.CIDR), o.Spec.Node, o.Spec.Slots)
		for slot := range b.Slots() {
			machines := map[int]bool{}
			for h := range slot.Holders() {
				n, err := strconv.Atoi(strings.TrimPrefix(h.Pod, "web-"))
				if err != nil {
					t.Fatal(err)
				}
				machines[n/100] = true
			}
			if slot.State == ipam.Damaged || len(machines) > 1 {
				t.Errorf("I1: %s is shared by %s and %s", slot.Addr, slot.Holder, slot.Second)
			}
		}
	}
}
