package block

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// idle is how long a block must have been idle in these tests.
const idle = 5 * time.Minute

// dropIdle drops a node's idle blocks, checks how many are left, and returns when the
// next may be due.
func dropIdle(t *testing.T, s *Store, node string, want int) time.Duration {
	t.Helper()
	again, err := s.DropIdle(t.Context(), node, idle)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.NodeBlocks(node); len(got) != want {
		t.Fatalf("%s has %v, want %d", node, got, want)
	}
	return again
}

// The blocks of a burst are dropped after a while. One of each family stays, and so
// does a block with a taken address.
func TestDropIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		feedAll(t, api, s.Store)
		p := perNode(t, "10.244.0.0/20", "fd00:10::/64")
		if _, errs := takeAll(t, s.Store, p, holders(200, 1)); len(errs) > 0 {
			t.Fatal(errs[0])
		}
		if again := dropIdle(t, s.Store, "node-0", 8); again != 0 {
			t.Errorf("again in %v, want never: all are in use", again)
		}
		for _, h := range holders(200, 1)[1:] {
			mustFree(t, s.Store, h)
		}
		if again := dropIdle(t, s.Store, "node-0", 8); again <= idle || again > idle+ipam.DefaultCooldown {
			t.Errorf("again in %v, want when the first has been idle for %v", again, idle)
		}
		advance(ipam.DefaultCooldown + time.Second)
		again := dropIdle(t, s.Store, "node-0", 8)
		if again < idle-2*time.Second || again > idle {
			t.Errorf("again in %v, want in %v", again, idle)
		}
		advance(again - time.Second)
		dropIdle(t, s.Store, "node-0", 8)
		advance(3 * time.Second)
		// The living pod has an address of one IPv4 and of one IPv6 block.
		dropIdle(t, s.Store, "node-0", 2)
		mustFree(t, s.Store, holders(1, 1)[0])
		advance(time.Hour)
		if again := dropIdle(t, s.Store, "node-0", 2); again != 0 {
			t.Errorf("again in %v: what is left is kept", again)
		}
		if n := len(api.List()); n != 2 {
			t.Errorf("%d objects, want one of each family", n)
		}
		if c := s.Counts(p, ipam.IPv4); c.Free != c.Usable {
			t.Errorf("the pool is not free: %v", c)
		}
	})
}

// A process that has just started has seen no block idle for long, whatever the
// recorded times are.
func TestDropIdleAfterStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		p := perNode(t, "10.244.0.0/20")
		takeAll(t, s.Store, p, holders(100, 1))
		for _, h := range holders(100, 1) {
			mustFree(t, s.Store, h)
		}
		advance(24 * time.Hour)
		next := run(t, api, Config{Now: func() time.Time { return time.Now().AddDate(1, 0, 0) }})
		list(api, next.Store)
		if again := dropIdle(t, next.Store, "node-0", 2); again != idle+ipam.MinCooldown {
			t.Errorf("again in %v, want in %v", again, idle+ipam.MinCooldown)
		}
		advance(idle + ipam.MinCooldown)
		dropIdle(t, next.Store, "node-0", 1)
	})
}

// Two stores take and drop at the same time. Every pod has an address of a block that
// is routed to its node.
func TestDropIdleRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(3 * time.Millisecond))
		a, b := run(t, api, Config{FreeLinger: -1}), run(t, api, Config{FreeLinger: -1})
		feedAll(t, api, a.Store)
		feedAll(t, api, b.Store)
		p := perNode(t, "10.244.0.0/22")
		for round := range 20 {
			if _, errs := takeAll(t, a.Store, p, holders(150, 1)); len(errs) > 0 {
				t.Fatal(errs[0])
			}
			for _, h := range holders(150, 1) {
				mustFree(t, a.Store, h)
			}
			advance(time.Hour + time.Duration(round)*time.Millisecond)
			var wg sync.WaitGroup
			for _, s := range []*running{a, b} {
				wg.Go(func() {
					if _, err := s.DropIdle(t.Context(), "node-0", idle); err != nil {
						t.Error(err)
					}
				})
			}
			for i, s := range []*running{a, b, a, b} {
				h := holderOn("node-0", 1000*round+500+i)
				wg.Go(func() { mustTake(t, s.Store, p, h) })
			}
			wg.Wait()
			taken := stored(t, api)
			onePerHolder(t, taken)
			if len(taken) != 4 {
				t.Fatalf("round %d: %d taken, want 4: %v", round, len(taken), taken)
			}
			for addr, h := range taken {
				mustFree(t, a.Store, h, addr.String()) // a may not know the address yet
			}
		}
	})
}

// A block that was routed to one node is not routed to another at once, since other
// nodes learn of routes late.
func TestBlockRestsBetweenNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		feedAll(t, api, s.Store)
		p := perNode(t, "10.244.0.0/26")
		mustTake(t, s.Store, p, holder(1))
		mustFree(t, s.Store, holder(1))
		advance(time.Hour)
		if err := s.DropEmpty(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, want := range [][]netip.Addr{nil, {netip.MustParseAddr("10.244.0.7")}} {
			if _, err := s.Take(t.Context(), p, Request{Holder: holderOn("node-2", 2), Addresses: want}); !errors.Is(err, fault.ErrExhausted) {
				t.Errorf("another node has it at once: %v", err)
			}
		}
		advance(rerouteDelay)
		mustTake(t, s.Store, p, holderOn("node-2", 2))
		if len(s.known.formerNodes) != 1 {
			t.Errorf("remembered: %v", s.known.formerNodes)
		}
		mustFree(t, s.Store, holderOn("node-2", 2))
		advance(time.Hour)
		if err := s.DropEmpty(t.Context(), "node-2"); err != nil {
			t.Fatal(err)
		}
		mustTake(t, s.Store, p, holderOn("node-2", 3)) // the same node may have it at once
	})
}

// A node has at most so many blocks of each family, however many takes there are at
// once.
func TestMaxBlocksPerNode(t *testing.T) {
	for _, bound := range []int{0, 2} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				api.Hook(slow(time.Millisecond))
				s := run(t, api, Config{FreeLinger: -1})
				p := pool(t, ipam.PoolSpec{Ranges: []string{"10.244.0.0/18", "fd00:10::/64"}, PerNode: true, MaxBlocksPerNode: bound})
				want := bound
				if want == 0 {
					want = ipam.DefaultMaxBlocksPerNode
				}
				got, errs := takeAll(t, s.Store, p, holders(want*64+36, 1))
				if len(got) != 2*64*want || len(errs) != 36 || !all(errs, fault.ErrExhausted) {
					t.Fatalf("%d addresses, %d errors: %v", len(got), len(errs), errs)
				}
				if text := fmt.Sprintf("the node has %d blocks of it, and spec.maxBlocksPerNode allows %d", want, want); !strings.Contains(errs[0].Error(), text) {
					t.Errorf("%v: want %q", errs[0], text)
				}
				if n := len(s.NodeBlocks("node-0")); n != 2*want {
					t.Errorf("%d blocks, want %d", n, 2*want)
				}
				mustTake(t, s.Store, p, holderOn("node-1", 9999))
			})
		})
	}
}

// One pod after another requests one address of each block. The node gets no more
// blocks than it may have, the error names the reason, and idle blocks are dropped.
func TestAddressOfEachBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		feedAll(t, api, s.Store)
		p := perNode(t, "10.244.0.0/22") // 16 blocks
		refused := 0
		for i := range 16 {
			h := holderOn("node-1", i)
			want := netip.AddrFrom4([4]byte{10, 244, byte(i / 4), byte(i%4*64 + 9)})
			_, err := s.Take(t.Context(), p, Request{Holder: h, Addresses: []netip.Addr{want}})
			switch {
			case err == nil:
				mustFree(t, s.Store, h)
			case !errors.Is(err, fault.ErrExhausted) || !strings.Contains(err.Error(), "node node-1 has 8 IPv4 blocks of pool pods already, and spec.maxBlocksPerNode allows 8"):
				t.Fatalf("%s: %v", want, err)
			default:
				refused++
			}
		}
		if refused != 8 {
			t.Errorf("%d refused, want 8", refused)
		}
		mustTake(t, s.Store, p, holderOn("node-2", 100))
		// A requested address in another node's block is refused with the reason.
		_, err := s.Take(t.Context(), p, Request{Holder: holderOn("node-2", 101), Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.9")}})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "is routed to node node-1, and the pod is on node node-2") {
			t.Errorf("an address of another node: %v", err)
		}
		advance(ipam.DefaultCooldown + time.Second)
		dropIdle(t, s.Store, "node-1", 8)
		advance(idle)
		dropIdle(t, s.Store, "node-1", 1)
		if n := len(api.List()); n != 2 {
			t.Errorf("%d blocks are left, want one of each node", n)
		}
	})
}
