package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/blocktest"
)

// woken records the pods that are tried again, in order.
type woken struct {
	mu   sync.Mutex
	seen []string
}

func (w *woken) pods(pods ...types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, pod := range pods {
		w.seen = append(w.seen, pod.Name)
	}
}

func (w *woken) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.seen, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: tried again (-want +got):\n%s", what, diff)
	}
	w.seen = nil
}

func onNode(pod, node string) driver.Owner {
	return driver.Owner{Namespace: "shop", PodName: pod, PodUID: types.UID("uid-" + pod), NodeName: node, Interface: "eth0"}
}

func parsedPool(t *testing.T, placement v1alpha1.Placement) *ipam.Pool {
	t.Helper()
	p, err := Parse(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Domain: "d", Placement: placement}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Pool
}

// rested is a time after which a released address may be taken again.
const rested = ipam.MinCooldown + 2*time.Second

// As many pods are tried again as addresses were released where they wait, first the one
// that waits longest, and not before an address may be taken again.
func TestStarvedAreTriedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newStarved(), &woken{}
		s.wakes = append(s.wakes, w.pods)
		routed, shared := parsedPool(t, v1alpha1.PlacementPerNode), parsedPool(t, v1alpha1.PlacementShared)
		for _, pod := range []string{"a", "b", "c", "a"} {
			s.add(onNode(pod, "n1"), routed)
		}
		s.add(onNode("other", "n2"), routed)
		s.released(onNode("old", "n1"), "d")
		s.released(onNode("old", "n3"), "d")
		s.released(onNode("old", "n2"), "another")
		<-time.After(ipam.MinCooldown)
		w.expect(t, "before an address may be taken")
		<-time.After(2 * time.Second)
		w.expect(t, "one address", "a")

		s.add(onNode("a", "n1"), routed) // it failed again, and waits behind the others
		s.remove(onNode("b", "n1"))
		s.released(onNode("old", "n1"), "d")
		<-time.After(time.Second / 2)
		s.released(onNode("old", "n1"), "d")
		<-time.After(rested)
		w.expect(t, "two addresses", "c", "a")

		s.add(onNode("anywhere", "n4"), shared)
		s.released(onNode("old", "n1"), "d")
		<-time.After(rested)
		w.expect(t, "a shared pool", "anywhere")
		if n := s.size(); n != 1 || len(s.lines) != 1 || len(s.rested) != 0 {
			t.Errorf("%d pods, %d lines and %d moments are remembered", n, len(s.lines), len(s.rested))
		}
	})
}

// A pod that is gone is forgotten, and takes no other's turn. The number of pods that are
// remembered has a bound.
func TestStarvedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newStarved(), &woken{}
		s.wakes = append(s.wakes, w.pods)
		routed := parsedPool(t, v1alpha1.PlacementPerNode)
		s.add(onNode("gone", "n1"), routed)
		s.add(onNode("here", "n1"), routed)
		for range 5 {
			<-time.After(stillStarved / 4)
			s.add(onNode("here", "n1"), routed)
		}
		s.released(onNode("old", "n1"), "d")
		<-time.After(rested)
		w.expect(t, "one is gone", "here")
		for i := range maxStarved + 1 {
			s.add(onNode(fmt.Sprint(i), "n1"), routed)
		}
		if got := s.size(); got != maxStarved {
			t.Errorf("%d pods are remembered", got)
		}
		<-time.After(stillStarved + time.Second)
		s.add(onNode("late", "n1"), routed)
		if got := s.size(); got != 1 {
			t.Errorf("%d pods are remembered of which one was tried", got)
		}
	})
}

// A pod that found no address left gets one as soon as a released one may be taken again.
func TestStarvedPodGetsAReleasedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := block.New(blocktest.NewAPI(), block.Config{Run: func() time.Duration { return time.Since(start) }, FreeLinger: -1})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		pools := NewPools()
		pools.observe(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{
			Ranges: []string{"10.1.0.0/31"}, Placement: v1alpha1.PlacementPerNode, Cooldown: &metav1.Duration{Duration: time.Minute},
		}})
		d, w := New(Config{Pools: []string{"default"}}, pools, s), &woken{}
		if err := d.Parts().Run.Wake(ctx, driver.Wake{Pods: w.pods}); err != nil {
			t.Fatal(err)
		}
		ensure := func(pod string) (*driver.Attachment, error) {
			return d.Ensure(ctx, &driver.Request{Owner: onNode(pod, "n1"), Default: true, Network: v1alpha1.DefaultNetwork})
		}
		first, err := ensure("first")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ensure("second"); err != nil {
			t.Fatal(err)
		}
		if _, err := ensure("third"); !errors.Is(err, fault.ErrExhausted) {
			t.Fatalf("a third pod got an answer from two addresses: %v", err)
		}
		if err := d.Release(ctx, driver.Ref{Owner: onNode("first", "n1"), Interface: first.Interface}); err != nil {
			t.Fatal(err)
		}
		<-time.After(rested)
		w.expect(t, "an address was released", "third")
		got, err := ensure("third")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first.Interface.Addresses, got.Interface.Addresses); diff != "" {
			t.Errorf("the address that was released (-want +got):\n%s", diff)
		}
		if n := d.starved.size(); n != 0 {
			t.Errorf("%d pods are remembered", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// size returns how many pods are known that found no address.
func (s *starved) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	return len(s.pods)
}
