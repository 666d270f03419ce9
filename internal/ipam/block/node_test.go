package block

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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

func TestPerNodeBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Millisecond))
		s := run(t, api, Config{})
		p := perNode(t, "10.244.0.0/24", "fd00:10::/64")
		// Further takes of a node wait while its first block is created: 100 pods need
		// two blocks.
		got, errs := takeAll(t, s.Store, p, holders(200, 2))
		if len(got) != 400 || len(errs) > 0 || api.Calls("create") != 8 {
			t.Fatalf("%d addresses, %d blocks, errors: %v", len(got), api.Calls("create"), errs)
		}
		var all []netip.Prefix
		for i := range 2 {
			node := fmt.Sprintf("node-%d", i)
			blocks := s.NodeBlocks(node)
			if len(blocks) != 4 || !slices.IsSortedFunc(blocks, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
				t.Errorf("blocks of %s: %v", node, blocks)
			}
			for a, h := range got {
				in := slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(a) })
				if in != (h.Node == node) {
					t.Errorf("%s of %s is routed to %s: %v", a, h.Node, node, in)
				}
			}
			all = append(all, blocks...)
		}
		for _, obj := range api.List() {
			want := map[string]string{v1alpha1.LabelDomain: "default", v1alpha1.LabelNode: obj.Spec.Node}
			if diff := cmp.Diff(want, obj.Labels); diff != "" || !slices.Contains(all, netip.MustParsePrefix(obj.Spec.CIDR)) {
				t.Errorf("block %s (labels -want +got):\n%s", obj.Name, diff)
			}
		}
		// All four IPv4 blocks are in use. A third node gets nothing, not even an IPv6
		// address.
		_, err := s.Take(t.Context(), p, Request{Holder: holderOn("node-2", 900)})
		if !errors.Is(err, fault.ErrExhausted) || !strings.Contains(err.Error(), "IPv4 address left for node node-2") ||
			!strings.Contains(err.Error(), "free=56") || !strings.Contains(err.Error(), "blocks of other nodes") {
			t.Errorf("Take() = %v", err)
		}
		if s.NodeBlocks("node-2") != nil {
			t.Errorf("blocks of node-2: %v", s.NodeBlocks("node-2"))
		}
	})
}

// Two leaders that do not know of each other give their nodes different blocks.
func TestPerNodeRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		a, b := run(t, api, Config{}), run(t, api, Config{})
		p := perNode(t, "10.244.0.0/25")
		one := mustTake(t, a.Store, p, holderOn("node-1", 1))
		two := mustTake(t, b.Store, p, holderOn("node-2", 2))
		again := mustTake(t, b.Store, p, holderOn("node-1", 3))
		block := func(got []string) netip.Prefix { return ipam.BlockOf(netip.MustParseAddr(got[0])) }
		if block(one) == block(two) || block(again) != block(one) {
			t.Errorf("blocks %s, %s, %s", block(one), block(two), block(again))
		}
		if diff := cmp.Diff([]netip.Prefix{block(one)}, b.NodeBlocks("node-1"), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("blocks that b knows of node-1 (-want +got):\n%s", diff)
		}
		if _, err := b.Take(t.Context(), p, Request{Holder: holderOn("node-3", 4)}); !errors.Is(err, fault.ErrExhausted) {
			t.Errorf("Take for node-3 = %v", err)
		}
	})
}

// A pool does not use blocks of the other placement.
func TestPlacementsDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		routed := perNode(t, "10.0.0.0/25")
		link := pool(t, ipam.PoolSpec{Name: "link", Ranges: []string{"10.0.0.0/25"}, UseEdges: true})
		mustTake(t, s.Store, routed, holder(1))
		got, errs := takeAll(t, s.Store, link, holders(200, 1)[100:])
		if len(got) != 64 || !all(errs, fault.ErrExhausted) {
			t.Errorf("%d addresses, errors: %v", len(got), errs)
		}
		wantLink := ipam.Counts{Usable: 128, Allocated: 65, Reserved: 63}
		if diff := cmp.Diff(wantLink, s.Counts(link)); diff != "" {
			t.Errorf("counts of the link (-want +got):\n%s", diff)
		}
		wantRouted := ipam.Counts{Usable: 128, Allocated: 65, Free: 63}
		if diff := cmp.Diff(wantRouted, s.Counts(routed)); diff != "" {
			t.Errorf("counts of the routed pool (-want +got):\n%s", diff)
		}
		for a := range got {
			_, err := s.Take(t.Context(), routed, Request{Holder: holder(50), Addresses: []netip.Addr{a}})
			if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "shared by all nodes") {
				t.Errorf("Take(%s) = %v", a, err)
			}
			break
		}
	})
}

func TestDropEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feedAll(t, api, s.Store)
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.244.0.0/24", "fd00:10::/64"}, PerNode: true, Cooldown: time.Minute})
		drop := func(want int) {
			t.Helper()
			if err := s.DropEmpty(t.Context(), "node-1"); err != nil {
				t.Fatal(err)
			}
			if n := len(s.NodeBlocks("node-1")); n != want {
				t.Fatalf("%d blocks are left, want %d", n, want)
			}
		}
		drop(0)
		mustTake(t, s.Store, p, holderOn("node-2", 2))
		got := mustTake(t, s.Store, p, holder(1))
		drop(2)
		mustFree(t, s.Store, holder(1), got[0])
		drop(2)
		advance(time.Minute)
		drop(1) // the IPv4 block has cooled down, the other has a taken address
		mustFree(t, s.Store, holder(1))
		advance(59 * time.Second)
		drop(1)
		advance(2 * time.Second)
		drop(0)
		if len(api.List()) != 2 || len(s.NodeBlocks("node-2")) != 2 {
			t.Errorf("%d objects are left, want those of node-2", len(api.List()))
		}
		// Other nodes can use the address range again.
		mustTake(t, s.Store, p, holderOn("node-3", 3))
		if len(api.List()) != 4 {
			t.Errorf("%d objects, want those of two nodes", len(api.List()))
		}
	})
}

// Events that arrive after a deletion do not bring the block back.
func TestDropEmptyEchoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feed := api.NewFeed(s.Store)
		mustTake(t, s.Store, perNode(t, "10.244.0.0/24"), holder(1))
		mustFree(t, s.Store, holder(1))
		advance(time.Hour)
		if err := s.DropEmpty(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		for {
			if blocks := s.NodeBlocks("node-1"); blocks != nil {
				t.Errorf("%v came back", blocks)
			}
			if feed.Deliver(1) == 0 {
				break
			}
		}
		if len(s.known.buried) != 0 {
			t.Errorf("buried: %v", s.known.buried)
		}
	})
}

// deletionShownFirst is an API whose informer shows a deletion before the reply to it
// comes.
type deletionShownFirst struct {
	*blocktest.API
	to *Store
}

// Delete implements Client.
func (a *deletionShownFirst) Delete(ctx context.Context, b *v1alpha1.IPBlock) error {
	err := a.API.Delete(ctx, b)
	if err == nil {
		a.to.Forget(b)
	}
	return err
}

// own review 8: if the event of a deletion came before the reply, the store remembered
// the deletion for ever.
func TestDropEmptyIsShownFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &deletionShownFirst{API: blocktest.NewAPI()}
		s := run(t, api, Config{})
		api.to = s.Store
		mustTake(t, s.Store, perNode(t, "10.244.0.0/24"), holder(1))
		mustFree(t, s.Store, holder(1))
		advance(time.Hour)
		if err := s.DropEmpty(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(api.List()) != 0 || len(s.known.buried) != 0 || len(s.known.blocks) != 0 {
			t.Errorf("%d blocks are left, and remembered are %v, %v", len(api.List()), s.known.buried, s.known.blocks)
		}
	})
}

// An address is taken from a block while the block is being dropped: the deletion
// fails.
func TestDropEmptyRace(t *testing.T) {
	for name, fault := range map[string]blocktest.Fault{
		"none": {}, "lost reply": {After: blocktest.ErrLost},
		"server error": {Before: apierrors.NewInternalError(errors.New("etcd"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				s, other := run(t, api, Config{}), run(t, api, Config{})
				feedAll(t, api, other.Store) // a store that has just learned of the block would take no freed address
				p := perNode(t, "10.244.0.0/24")
				got := mustTake(t, s.Store, p, holder(1))
				mustFree(t, s.Store, holder(1))
				advance(time.Hour)
				raced := false
				api.Hook(func(c blocktest.Call) blocktest.Fault {
					if c.Verb != "delete" || raced {
						return blocktest.Fault{}
					}
					raced = true
					if name == "none" {
						mustTake(t, other.Store, p, holder(2), got[0])
					}
					return fault
				})
				if err := s.DropEmpty(t.Context(), "node-1"); err != nil {
					t.Fatal(err)
				}
				want := 0
				if name == "none" {
					want = 1
				}
				if len(api.List()) != want || len(s.NodeBlocks("node-1")) != want || !raced {
					t.Errorf("%d objects, blocks %v, want %d", len(api.List()), s.NodeBlocks("node-1"), want)
				}
			})
		})
	}
}

func TestDropEmptyRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		mustTake(t, s.Store, perNode(t, "10.244.0.0/24"), holder(1))
		mustFree(t, s.Store, holder(1))
		advance(time.Hour)
		api.Hook(func(blocktest.Call) blocktest.Fault { return blocktest.Fault{Before: forbidden()} })
		if err := s.DropEmpty(t.Context(), "node-1"); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("DropEmpty() = %v", err)
		}
	})
}

// A node name may be too long for a label value.
func TestLongNodeName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		node := strings.Repeat("n", 64)
		mustTake(t, s.Store, perNode(t, "10.244.0.0/24"), holderOn(node, 1))
		obj := api.List()[0]
		if _, labelled := obj.Labels[v1alpha1.LabelNode]; labelled || obj.Spec.Node != node {
			t.Errorf("labels %v, node %s", obj.Labels, obj.Spec.Node)
		}
	})
}
