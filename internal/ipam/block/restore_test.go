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
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block/blocktest"
)

// guarded returns a store that looks for losses and gets all events at once.
func guarded(tb testing.TB, api *blocktest.API) *running {
	tb.Helper()
	s := run(tb, api, Config{})
	s.Guard(true)
	follow(tb, api, s.Store)
	synctest.Wait()
	return s
}

func lossOf(h ipam.Holder, addr string) Loss {
	return Loss{Holder: h, Domain: ipam.DefaultDomain, Addr: netip.MustParseAddr(addr)}
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

// editByHand writes a block as a person does by hand.
func editByHand(api *blocktest.API, slots ...string) {
	b := api.List()[0]
	b.Spec.Slots, b.Spec.Used = slots, int32(len(slots))
	api.Put(b)
}

// After an edit of a block by hand, the addresses that were taken in it go to no other
// holder. Restore gives them back to their holders.
func TestLossesAreWithheldAndRestored(t *testing.T) {
	const ten = "10.0.0.0-10.0.0.9"
	cases := map[string]func(api *blocktest.API, before []*v1alpha1.IPBlock){
		"slots removed":                func(api *blocktest.API, _ []*v1alpha1.IPBlock) { editByHand(api) },
		"put back to an older state":   func(api *blocktest.API, before []*v1alpha1.IPBlock) { editByHand(api, before[0].Spec.Slots...) },
		"a slot written as long freed": func(api *blocktest.API, _ []*v1alpha1.IPBlock) { editByHand(api, "1 F 9 1", "2 F 9 1") },
		"a slot written as another's": func(api *blocktest.API, _ []*v1alpha1.IPBlock) {
			editByHand(api, "1 A 9 1 uid-x ns/gone/eth0 node", "2 F 9 1")
		},
		"deleted and made by another": func(api *blocktest.API, _ []*v1alpha1.IPBlock) {
			b := api.List()[0]
			api.Remove(b.Name)
			b.UID, b.ResourceVersion, b.Spec.Slots, b.Spec.Used = "", "", nil, 0
			api.Put(b)
		},
	}
	for name, hand := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := blocktest.NewAPI()
				p := pool(t, ipam.PoolSpec{Ranges: []string{ten}, UseEdges: true})
				s := guarded(t, api)
				mustTake(t, s.Store, p, holder(0), "10.0.0.0")
				before := api.List()
				mustTake(t, s.Store, p, holder(1), "10.0.0.1")
				mustTake(t, s.Store, p, holder(2), "10.0.0.2")
				synctest.Wait()
				hand(api, before)
				synctest.Wait()
				if len(s.Losses()) != 1 {
					t.Error("the losses are not announced")
				}
				got, errs := takeAll(t, s.Store, p, holders(20, 1)[3:])
				if len(got) > 8 || !all(errs, ErrExhausted) {
					t.Errorf("%d addresses are handed out, errors %v", len(got), errs)
				}
				for _, a := range []string{"10.0.0.1", "10.0.0.2"} {
					if h, ok := got[netip.MustParseAddr(a)]; ok {
						t.Errorf("%s is given to %s", a, h)
					}
					if _, err := s.Take(t.Context(), p, Request{Holder: holder(30), Addresses: []netip.Addr{netip.MustParseAddr(a)}}); !errors.Is(err, ErrConflict) {
						t.Errorf("%s is given to who asks for it: %v", a, err)
					}
				}
				refused := 0
				for _, l := range s.Lost() {
					if err := s.Restore(t.Context(), l); Refused(err) {
						refused++
					} else if err != nil {
						t.Error(err)
					}
				}
				if name == "a slot written as another's" {
					if refused != 1 || podsByAddr(t, api)["10.0.0.1"] != "gone" {
						t.Errorf("%d refused, %v: what another has is not taken from him", refused, podsByAddr(t, api))
					}
					gone := ipam.Holder{PodUID: "uid-x", Interface: "eth0", Namespace: "ns", Pod: "gone", Node: "node"}
					mustFree(t, s.Store, gone, "10.0.0.1")
					advance(time.Hour)
					if _, err := s.Take(t.Context(), p, Request{Holder: holder(31), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}); !errors.Is(err, ErrConflict) {
						t.Errorf("what was given back is given to who asks for it: %v", err)
					}
					for _, l := range s.Lost() {
						if err := s.Restore(t.Context(), l); err != nil {
							t.Error(err)
						}
					}
				}
				if left := s.Lost(); len(left) > 0 {
					t.Errorf("still lost: %v", left)
				}
				if has := podsByAddr(t, api); has["10.0.0.1"] != "web-1" || has["10.0.0.2"] != "web-2" {
					t.Errorf("after all: %v", has)
				}
			})
		})
	}
}

// A write that lost the race with an edit by hand is repeated on the edited state. It
// does not take an address whose record vanished.
func TestLossSeenByAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{}) // without an informer
		s.Guard(true)
		p := shared(t, "10.0.0.1-10.0.0.3")
		one := mustTake(t, s.Store, p, holder(1))
		editByHand(api)
		if two := mustTake(t, s.Store, p, holder(2)); slices.Equal(one, two) {
			t.Errorf("%v is handed out twice", two)
		}
		if diff := cmp.Diff([]Loss{lossOf(holder(1), one[0])}, s.Lost(), cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreUnexported(Loss{})); diff != "" {
			t.Errorf("lost (-want +got):\n%s", diff)
		}
	})
}

// A free is no loss for the store that does it, even if the reply is lost. A free by
// another leader is one until Absolve: that leader's record of the holder is gone.
func TestFreedIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := guarded(t, api)
		p := shared(t, "10.0.0.1-10.0.0.3")
		a := mustTake(t, s.Store, p, holder(1))
		lose := true
		api.Hook(func(c blocktest.Call) blocktest.Fault {
			if c.Verb == "update" && lose {
				lose = false
				return blocktest.Fault{After: blocktest.ErrLost}
			}
			return blocktest.Fault{}
		})
		mustFree(t, s.Store, holder(1), a...)
		synctest.Wait()
		if l := s.Lost(); len(l) > 0 {
			t.Errorf("what was freed here is lost: %v", l)
		}
		b := mustTake(t, s.Store, p, holder(2))
		synctest.Wait()
		other := run(t, api, Config{})
		mustFree(t, other.Store, holder(2), b...)
		synctest.Wait()
		lost := s.Lost()
		if len(lost) != 1 {
			t.Fatalf("lost: %v", lost)
		}
		s.Absolve(lost[0])
		advance(time.Minute)
		if got := mustTake(t, s.Store, p, holder(3), b[0]); !slices.Equal(got, b) {
			t.Errorf("got %v", got)
		}
		if l := s.Lost(); len(l) > 0 || len(s.withLosses) > 0 {
			t.Errorf("still lost: %v", l)
		}
	})
}

// A loss is judged by one state of its slot. If the slot has changed since, for
// instance because another leader has freed the address, Restore fails until Lost is
// called again.
func TestRestoreOfWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		p := shared(t, "10.0.0.1-10.0.0.3")
		other := run(t, api, Config{})
		a := mustTake(t, other.Store, p, holder(1))
		s := run(t, api, Config{}) // its informer lags
		s.Guard(true)
		s.Miss(lossOf(holder(1), a[0]))
		lost := s.Lost()
		mustFree(t, other.Store, holder(1), a...)
		if err := s.Restore(t.Context(), lost[0]); !errors.Is(err, ErrUnavailable) || Refused(err) {
			t.Errorf("what was given back meanwhile: error %v", err)
		}
		if has := podsByAddr(t, api); len(has) > 0 {
			t.Errorf("taken: %v", has)
		}
		if err := s.Restore(t.Context(), s.Lost()[0]); err != nil {
			t.Errorf("after another look: %v", err)
		}
	})
}

// A new leader reports the addresses that records name. If the block does not exist,
// none of them is handed out, and Restore creates the block on its node.
func TestMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := guarded(t, api)
		p := perNode(t, "10.244.0.0/25")
		l := lossOf(holderOn("node-7", 1), "10.244.0.5")
		l.Node, l.Claim = "node-7", "shop/web-0"
		if first, again := s.Miss(l), s.Miss(l); !first || !again || len(s.Lost()) != 1 {
			t.Errorf("lost: %v", s.Lost())
		}
		// The pods of another node get addresses of the other block.
		if got := mustTake(t, s.Store, p, holderOn("node-8", 2)); !strings.HasPrefix(got[0], "10.244.0.6") && !strings.HasPrefix(got[0], "10.244.0.7") {
			t.Errorf("node-8 got %v, of the block of node-7", got)
		}
		if err := s.Restore(t.Context(), s.Lost()[0]); err != nil {
			t.Fatal(err)
		}
		if s.Miss(l) || len(s.Lost()) > 0 {
			t.Errorf("lost although it is there: %v", s.Lost())
		}
		b := api.List()[0]
		if b.Spec.Node != "node-7" || b.Spec.Used != 1 || ipam.ClaimOf(b.Spec.Slots[0]) != "shop/web-0" {
			t.Errorf("the block: %+v", b.Spec)
		}
	})
}

// A standby does not look for losses, and a leader that becomes a standby forgets them.
func TestGuardEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{})
		follow(t, api, s.Store)
		p := shared(t, "10.0.0.1-10.0.0.3")
		other := run(t, api, Config{})
		a := mustTake(t, other.Store, p, holder(1))
		synctest.Wait()
		mustFree(t, other.Store, holder(1), a...)
		synctest.Wait()
		if l := s.Lost(); len(l) > 0 {
			t.Errorf("a standby has losses: %v", l)
		}
		s.Guard(true)
		s.Miss(lossOf(holder(4), "10.0.0.2"))
		s.Miss(lossOf(holder(4), "192.0.2.1"))
		s.Guard(false)
		if l := s.Lost(); len(l) > 0 || s.blocks["default.4-c0000200"] != nil {
			t.Errorf("left over: %v", l)
		}
		advance(time.Minute)
		if _, errs := takeAll(t, s.Store, p, holders(3, 1)); len(errs) > 0 {
			t.Error(errs)
		}
	})
}

// A block that was deleted while addresses of it were taken is created again at once,
// for the next leader.
func TestRewrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := guarded(t, api)
		p := shared(t, "10.0.0.1-10.0.0.3")
		mustTake(t, s.Store, p, holder(1))
		mustTake(t, s.Store, p, holder(2))
		synctest.Wait()
		was := podsByAddr(t, api)
		api.Remove(api.List()[0].Name)
		synctest.Wait()
		if len(s.Losses()) != 1 {
			t.Error("the deletion is not announced")
		}
		if err := s.Rewrite(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(was, podsByAddr(t, api)); diff != "" {
			t.Errorf("taken (-before +after):\n%s", diff)
		}
		calls := api.Calls("get") + api.Writes()
		if err := s.Rewrite(t.Context()); err != nil || api.Calls("get")+api.Writes() != calls {
			t.Errorf("nothing is to be written, and there were calls; error %v", err)
		}
	})
}
