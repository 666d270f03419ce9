package block

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// Late events of the informer do not bring back an older state.
func TestOldEventsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feed := api.NewFeed(s.Store)
		p := shared(t, "10.0.0.0/24")
		for i := range 20 {
			mustTake(t, s.Store, p, holder(i))
		}
		for i := range 10 {
			mustFree(t, s.Store, holder(i))
		}
		want := inMemory(s.Store)
		for feed.Deliver(1) > 0 {
			if diff := cmp.Diff(len(want), len(inMemory(s.Store))); diff != "" {
				t.Fatalf("an echo changed what is known (-want +got):\n%s", diff)
			}
		}
		reads := api.Calls("get")
		mustTake(t, s.Store, p, holder(30))
		if api.Calls("get") != reads {
			t.Error("an echo made the store lose its resource version")
		}
	})
}

func TestObserveLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		a, b := run(t, api, Config{}), run(t, api, Config{})
		p := shared(t, "10.0.0.0/26", "fd00::/122")
		got := mustTake(t, a.Store, p, holder(1))
		feed := api.NewFeed(b.Store)
		feed.Deliver(-1)
		held := b.Held(holder(1))
		if !slices.Equal(addrsOf(held), got) {
			t.Fatalf("b knows %v, want %v", held, got)
		}
		want := Lease{Holder: holder(1), Domain: "default", Addr: netip.MustParseAddr(got[0]), Block: "default.4-0a000000", Since: time.Now()}
		if l := held[0]; l.Holder != want.Holder || l.Domain != want.Domain || l.Addr != want.Addr || l.Block != want.Block || !l.Since.Equal(want.Since) {
			t.Errorf("lease %+v, want %+v", held[0], want)
		}
		// The store knows the block from the feed, so a write needs no read.
		mustTake(t, b.Store, p, holder(2))
		if api.Calls("get") != 0 {
			t.Errorf("%d reads", api.Calls("get"))
		}
		mustFree(t, a.Store, holder(1))
		feed.Deliver(-1)
		if held := b.Held(holder(1)); len(held) > 0 {
			t.Errorf("b still knows %v", held)
		}
	})
}

// A newer state that arrives during a write is not lost.
func TestObserveDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		a, b := run(t, api, Config{}), run(t, api, Config{})
		p := shared(t, "10.0.0.0/26")
		mustTake(t, a.Store, p, holder(1))
		feedAll(t, api, a.Store)
		feedAll(t, api, b.Store)
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			// The reply comes after another store has written.
			if c.N == 2 {
				return blocktest.Fault{AfterDelay: time.Second}
			}
			return blocktest.Fault{}
		})
		done := make(chan struct{})
		go func() { defer close(done); mustTake(t, a.Store, p, holder(2)) }()
		synctest.Wait()
		mustTake(t, b.Store, p, holder(3))
		<-done
		synctest.Wait()
		if diff := cmp.Diff(len(stored(t, api)), len(inMemory(a.Store))); diff != "" {
			t.Errorf("leases (-stored +memory):\n%s", diff)
		}
		reads := api.Calls("get")
		mustTake(t, a.Store, p, holder(4))
		if api.Calls("get") != reads {
			t.Error("the newer state was lost: it had to be read")
		}
	})
}

// While the outcome of a write is unknown, the store does not adopt the state that the
// informer shows, and Behind returns true.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feed := api.NewFeed(s.Store)
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			switch c.N {
			case 1:
				return blocktest.Fault{After: blocktest.ErrLost}
			case 2:
				return blocktest.Fault{Delay: time.Second}
			}
			return blocktest.Fault{}
		})
		done := make(chan struct{})
		go func() { defer close(done); mustTake(t, s.Store, shared(t, "10.0.0.0/26"), holder(1)) }()
		synctest.Wait()
		feed.Deliver(-1)
		if !s.Behind() || len(inMemory(s.Store)) != 0 {
			t.Errorf("behind: %v, known: %v", s.Behind(), inMemory(s.Store))
		}
		<-done
		synctest.Wait()
		if s.Behind() || len(inMemory(s.Store)) != 1 {
			t.Errorf("after the read behind: %v, known: %v", s.Behind(), inMemory(s.Store))
		}
	})
}

// A block is deleted by hand while addresses of it are taken. They are not handed out
// again, and the next change creates the block again.
func TestDeletedByHand(t *testing.T) {
	for name, informed := range map[string]bool{"found by a write": false, "shown by the informer": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				s := run(t, api, Config{})
				p := shared(t, "10.0.0.1-10.0.0.3")
				one, two := mustTake(t, s.Store, p, holder(1)), mustTake(t, s.Store, p, holder(2))
				api.Remove(api.List()[0].Name)
				if informed {
					api.NewFeed(s.Store).Deliver(-1)
				}
				three := mustTake(t, s.Store, p, holder(3))
				if slices.Equal(three, one) || slices.Equal(three, two) {
					t.Fatalf("%v is handed out twice", three)
				}
				if n := len(stored(t, api)); n != 3 {
					t.Errorf("%d addresses are stored, want 3", n)
				}
				if got := mustTake(t, s.Store, p, holder(1)); !slices.Equal(got, one) {
					t.Errorf("holder 1 has %v, now %v", one, got)
				}
			})
		})
	}
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		a, b := run(t, api, Config{}), run(t, api, Config{})
		feed := api.NewFeed(b.Store)
		p := perNode(t, "10.244.0.0/26")
		mustTake(t, a.Store, p, holder(1))
		mustFree(t, a.Store, holder(1))
		advance(time.Minute)
		feed.Deliver(-1)
		if err := a.DropEmpty(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		gone := api.NewFeed(b.Store)
		advance(rerouteDelay)
		// Store a creates the block again before store b gets the deletion.
		mustTake(t, a.Store, p, holderOn("node-2", 2))
		got := mustTake(t, b.Store, p, holderOn("node-2", 3), "10.244.0.5")
		for feed.Deliver(1)+gone.Deliver(1) > 0 {
			if held := b.Held(holder(3)); !slices.Equal(addrsOf(held), got) || len(b.NodeBlocks("node-2")) != 1 || len(b.NodeBlocks("node-1")) != 0 {
				t.Fatalf("an old event dropped the new block: held %v", held)
			}
			if e := b.known.blocks["default.4-0af40000"]; e.obj == nil {
				t.Fatal("an old deletion made the store forget the object")
			}
		}
		reads := api.Calls("get")
		mustTake(t, b.Store, p, holderOn("node-2", 4))
		if api.Calls("get") != reads {
			t.Error("an old deletion made the store forget the resource version")
		}
		api.NewFeed(a.Store).Deliver(-1)
		if len(a.known.buried) != 0 {
			t.Errorf("buried: %v", a.known.buried)
		}
		b.Forget(&v1alpha1.IPBlock{ObjectMeta: metav1.ObjectMeta{Name: "unknown"}})
	})
}

func TestDamagedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		damaged := []string{"1 A nonsense", "2 A 1 0 uid-2 ns/pod/eth0 node", "2 F 1 0"}
		api.Put(&v1alpha1.IPBlock{
			ObjectMeta: metav1.ObjectMeta{Name: "default.4-0a000000"},
			Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: "10.0.0.0/26", Slots: damaged},
		})
		s := run(t, api, Config{})
		feedAll(t, api, s.Store)
		p := shared(t, "10.0.0.0-10.0.0.9")
		if diff := cmp.Diff(ipam.Counts{Usable: 10, Free: 8, Reserved: 2}, s.Counts(p)); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
		got, errs := takeAll(t, s.Store, p, holders(10, 1))
		if len(got) != 8 || len(errs) != 2 || !all(errs, fault.ErrExhausted) {
			t.Errorf("%d addresses, errors: %v", len(got), errs)
		}
		slots := api.List()[0].Spec.Slots
		for _, d := range damaged {
			if !slices.Contains(slots, d) {
				t.Errorf("record %q was dropped: %q", d, slots)
			}
		}
	})
}

// No address is taken from objects that are being deleted, or whose name and content
// disagree.
func TestForeignObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		now := metav1.Now()
		put := func(name, cidr string, deleted *metav1.Time) {
			api.Put(&v1alpha1.IPBlock{
				ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: deleted},
				Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: cidr},
			})
		}
		put("default.4-0a000000", "10.9.0.0/26", nil)
		put("default.4-0a000040", "10.0.0.64/26", &now)
		put("my-block", "10.0.0.128/26", nil)
		put("default.4-0a0000c0", "pods", nil)
		s := run(t, api, Config{})
		feedAll(t, api, s.Store)
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.0/24"}, UseEdges: true})
		got, errs := takeAll(t, s.Store, p, holders(70, 1))
		if len(got) != 64 || !all(errs, fault.ErrExhausted) {
			t.Errorf("%d addresses, errors: %v", len(got), errs)
		}
		for a := range got {
			if !netip.MustParsePrefix("10.0.0.128/26").Contains(a) {
				t.Errorf("%s is handed out", a)
			}
		}
		_, err := s.Take(t.Context(), p, Request{Holder: holder(99), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.65")}})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "being deleted") {
			t.Errorf("Take() = %v", err)
		}
		mustFree(t, s.Store, holder(1), "10.0.0.1", "10.0.0.65")
	})
}

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, verbs := blocktest.NewAPI(), map[string]int{}
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			verbs[c.Verb]++
			return blocktest.Fault{Delay: 3 * time.Millisecond}
		})
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/26")
		takeAll(t, s.Store, p, holders(11, 1))
		mustTake(t, s.Store, p, holder(1))
		s.stop()
		if b := api.List(); len(b) != 1 || b[0].Spec.Used != 11 || verbs["create"] != 1 || verbs["update"] > 1 || verbs["get"] != 1 {
			t.Errorf("blocks %+v after calls %v", b, verbs)
		}
	})
}
