package heal

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/ipam/block/blocktest"
)

// emptyAPI is an API server without pods and records.
type emptyAPI struct{ client.Reader }

func (emptyAPI) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
}

func (emptyAPI) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// guarded returns a running store that looks for losses and gets all events of its
// blocks.
func guarded(t *testing.T) (context.Context, *block.Store, *blocktest.API) {
	t.Helper()
	api := blocktest.NewAPI()
	s := block.New(api, block.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = s.Run(ctx) })
	all.Go(func() { api.NewFeed(s).Run(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
	s.Guard(true)
	return ctx, s, api
}

// own review 11, make sim SEED=65: a slot was removed by an edit, the pod with the
// address ended, and the next pod got the address 2.5 seconds later.
func TestWhatWasLostRestsWhenItsPodIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s, api := guarded(t)

		p := lan(t, "lan", "10.0.0.1")
		take := func(ctx context.Context, name string) error {
			h := ipam.Holder{PodUID: "uid-" + name, Interface: "eth0", Namespace: "ns", Pod: name}
			_, err := s.Take(ctx, p, block.Request{Holder: h, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
			return err
		}
		if err := take(ctx, "former"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		b := api.List()[0]
		b.Spec.Slots, b.Spec.Used = nil, 0
		api.Put(b)
		synctest.Wait()
		if err := New(Config{Client: emptyAPI{}, Live: emptyAPI{}, Store: s}).Heal(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if slots := api.List()[0].Spec.Slots; len(slots) != 1 || !strings.Contains(slots[0], " F ") || len(s.Lost()) > 0 {
			t.Errorf("slots %q, want the address freed; still lost are %v", slots, s.Lost())
		}
		soon, end := context.WithTimeout(ctx, ipam.MinCooldown/2)
		defer end()
		if err := take(soon, "next"); err == nil {
			t.Error("the address is handed out at once")
		}
		<-time.After(time.Minute)
		if err := take(ctx, "next"); err != nil {
			t.Errorf("after the cooldown: %v", err)
		}
	})
}

// If the whole block is gone, it is not created again for a pod that is gone: the node
// of the block is unknown.
func TestNoBlockForAPodThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s, api := guarded(t)
		former := ipam.Holder{PodUID: "uid-former", Interface: "eth0", Namespace: "ns", Pod: "former"}
		s.Miss(block.Loss{Holder: former, Domain: ipam.DefaultDomain, Addr: netip.MustParseAddr("10.0.0.1")})
		if err := New(Config{Client: emptyAPI{}, Live: emptyAPI{}, Store: s}).Heal(ctx); err != nil {
			t.Fatal(err)
		}
		if b := api.List(); len(b) > 0 || len(s.Lost()) > 0 {
			t.Errorf("there are %d blocks, and %v is lost", len(b), s.Lost())
		}
	})
}

// make sim, TestMonth with seed 9: a block was gone, and its node was unknown. It is
// created again for the node of the record that names the address.
func TestBlockIsMadeAnewForTheNodeOfTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s, api := guarded(t)
		holder := ipam.Holder{PodUID: "uid-web", Interface: "eth0", Namespace: "ns", Pod: "web", Node: "node-1"}
		s.Miss(block.Loss{Holder: holder, Domain: ipam.DefaultDomain, Addr: netip.MustParseAddr("10.0.0.1")})
		l := s.Lost()[0]
		l.Node = "node-1"
		if err := s.Restore(ctx, l); err != nil {
			t.Fatal(err)
		}
		if b := api.List(); len(b) != 1 || b[0].Spec.Node != "node-1" {
			t.Errorf("blocks %+v, want one of node-1", b)
		}
	})
}
