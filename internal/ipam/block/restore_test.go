package block

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

func leaseOf(h ipam.Holder, addr string) Lease {
	return Lease{Holder: h, Domain: ipam.DefaultDomain, Addr: netip.MustParseAddr(addr)}
}

// podsByAddr returns the pod name of each taken address.
func podsByAddr(tb testing.TB, api *blocktest.API) map[string]string {
	tb.Helper()
	out := map[string]string{}
	for a, h := range stored(tb, api) {
		out[a.String()] = h.Pod
	}
	return out
}

// If a block does not exist, Restore creates it on the node, with the claim. While that is
// written, the address is handed out to nobody else, and the block to no other node.
func TestRestoreCreatesTheBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feedAll(t, api, s.Store)
		p := perNode(t, "10.244.0.0/25")
		l := leaseOf(holderOn("node-7", 1), "10.244.0.5")
		l.Claim = "shop/web-0"
		api.Hook(func(c blocktest.Call) (f blocktest.Fault) {
			if c.Verb == "create" && strings.HasSuffix(c.Name, "0af40000") {
				f.Delay = time.Second
			}
			return f
		})
		restored := make(chan error)
		go func() { restored <- s.Restore(t.Context(), l, nil, "node-7") }()
		synctest.Wait()
		// The pods of another node get addresses of the other block.
		if got := mustTake(t, s.Store, p, holderOn("node-8", 2)); !strings.HasPrefix(got[0], "10.244.0.6") && !strings.HasPrefix(got[0], "10.244.0.7") {
			t.Errorf("node-8 got %v, of the block of node-7", got)
		}
		if err := <-restored; err != nil {
			t.Fatal(err)
		}
		if held := s.Held(l.Holder); len(held) != 1 || held[0].Addr != l.Addr {
			t.Errorf("it has %v", held)
		}
		b := api.List()[0]
		if b.Spec.Node != "node-7" || b.Spec.Used != 1 || ipam.ClaimOf(b.Spec.Slots[0]) != "shop/web-0" {
			t.Errorf("the block: %+v", b.Spec)
		}
		writes := api.Writes()
		if err := s.Restore(t.Context(), l, nil, "node-7"); err != nil || api.Writes() != writes {
			t.Errorf("restored twice, it writes; error %v", err)
		}
	})
}

// The address of another holder is not taken from him, also if the store does not know yet
// that he has it.
func TestRestoreOfWhatAnotherHas(t *testing.T) {
	for _, informed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			api := blocktest.NewAPI()
			p := shared(t, "10.0.0.1-10.0.0.3")
			other := run(t, api, Config{})
			a := mustTake(t, other.Store, p, holder(1))
			s := run(t, api, Config{})
			if informed {
				feedAll(t, api, s.Store)
				synctest.Wait()
			}
			if err := s.Restore(t.Context(), leaseOf(holder(2), a[0]), nil, ""); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("informed %v: error %v", informed, err)
			}
			if got := podsByAddr(t, api)[a[0]]; got != "web-1" {
				t.Errorf("informed %v: %s has it", informed, got)
			}
		})
	}
}

// A block that is deleted while addresses of it are taken is remembered: nobody else gets
// them, and the next change writes the block again.
func TestDeletedBlockIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		feedAll(t, api, s.Store)
		p := shared(t, "10.0.0.1-10.0.0.3")
		mustTake(t, s.Store, p, holder(1))
		mustTake(t, s.Store, p, holder(2))
		synctest.Wait()
		want := podsByAddr(t, api)
		api.Remove(api.List()[0].Name)
		synctest.Wait()
		third := mustTake(t, s.Store, p, holder(3))
		want[third[0]] = "web-3"
		if diff := cmp.Diff(want, podsByAddr(t, api)); diff != "" || len(want) != 3 {
			t.Errorf("taken (-want +got):\n%s", diff)
		}
	})
}
