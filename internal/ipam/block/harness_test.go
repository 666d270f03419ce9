package block

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

func pool(tb testing.TB, spec ipam.PoolSpec) *ipam.Pool {
	tb.Helper()
	if spec.Name == "" {
		spec.Name = "pods"
	}
	p, err := ipam.ParsePool(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func shared(tb testing.TB, ranges ...string) *ipam.Pool {
	tb.Helper()
	return pool(tb, ipam.PoolSpec{Ranges: ranges})
}

func perNode(tb testing.TB, ranges ...string) *ipam.Pool {
	tb.Helper()
	return pool(tb, ipam.PoolSpec{Ranges: ranges, PerNode: true})
}

func holderOn(node string, i int) ipam.Holder {
	return ipam.Holder{
		PodUID: fmt.Sprintf("9b2e6f4e-1a2b-4c3d-8e9f-%012d", i), Interface: "eth0",
		Namespace: "default", Pod: fmt.Sprintf("web-%d", i), Node: node,
	}
}

func holder(i int) ipam.Holder { return holderOn("node-1", i) }

// running is a store whose Run is running.
type running struct {
	*Store
	// stop ends Run and waits for it.
	stop func()
}

// run starts a store and stops it at the end of the test. In a synctest bubble, a
// goroutine that the store leaves behind fails the test.
func run(tb testing.TB, api Client, cfg Config) *running {
	tb.Helper()
	s := New(api, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			tb.Errorf("Run() = %v", err)
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	tb.Cleanup(stop)
	return &running{s, stop}
}

// feedAll feeds a store with all events, past and future, without delay.
func feedAll(tb testing.TB, api *blocktest.API, s *Store) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	feed := api.NewFeed(s)
	feed.Deliver(-1)
	go func() { defer close(done); feed.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-done })
}

// advance lets virtual time pass.
func advance(d time.Duration) { <-time.After(d) }

func mustTake(tb testing.TB, s *Store, p *ipam.Pool, h ipam.Holder, wanted ...string) []string {
	tb.Helper()
	r := Request{Holder: h}
	for _, w := range wanted {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(w))
	}
	got, err := s.Take(tb.Context(), p, r)
	if err != nil {
		tb.Fatalf("Take for %s: %v", h, err)
	}
	return addrsOf(got)
}

func mustFree(tb testing.TB, s *Store, h ipam.Holder, addrs ...string) {
	tb.Helper()
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	if err := s.Free(tb.Context(), h, ipam.DefaultDomain, list); err != nil {
		tb.Fatalf("Free for %s: %v", h, err)
	}
}

func addrsOf(leases []Lease) []string {
	var out []string
	for _, l := range leases {
		out = append(out, l.Addr.String())
	}
	return out
}

// stored reads the taken addresses and their holders from the API.
func stored(tb testing.TB, api *blocktest.API) map[netip.Addr]ipam.Holder {
	tb.Helper()
	out := map[netip.Addr]ipam.Holder{}
	for _, obj := range api.List() {
		b := ipam.DecodeBlock(netip.MustParsePrefix(obj.Spec.CIDR), obj.Spec.Node, obj.Spec.Slots)
		if int(obj.Spec.Used) != b.Used() {
			tb.Errorf("block %s has used=%d, want %d", obj.Name, obj.Spec.Used, b.Used())
		}
		for s := range b.Slots() {
			switch s.State {
			case ipam.Taken:
				out[s.Addr] = s.Holder
			case ipam.Damaged:
				tb.Errorf("block %s has a damaged record of %s", obj.Name, s.Addr)
			default:
			}
		}
	}
	return out
}

// onePerHolder fails the test if a holder has two addresses of a family.
func onePerHolder(tb testing.TB, taken map[netip.Addr]ipam.Holder) {
	tb.Helper()
	type key struct {
		uid    string
		family ipam.Family
	}
	seen := map[key]netip.Addr{}
	for a, h := range taken {
		k := key{h.PodUID, ipam.FamilyOf(a)}
		if other, ok := seen[k]; ok {
			tb.Errorf("%s has %s and %s", h, other, a)
		}
		seen[k] = a
	}
}

// inMemory returns the taken addresses in the store's memory, for a comparison with
// stored.
func inMemory(s *Store) map[netip.Addr]ipam.Holder {
	out := map[netip.Addr]ipam.Holder{}
	for l := range s.All() {
		out[l.Addr] = l.Holder
	}
	return out
}

func slow(d time.Duration) func(blocktest.Call) blocktest.Fault {
	return func(blocktest.Call) blocktest.Fault { return blocktest.Fault{Delay: d} }
}

// takeAll takes for many holders at once. It returns the addresses with their holders,
// and the errors.
func takeAll(tb testing.TB, s *Store, p *ipam.Pool, holders []ipam.Holder) (got map[netip.Addr]ipam.Holder, errs []error) {
	tb.Helper()
	got = map[netip.Addr]ipam.Holder{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range holders {
		wg.Go(func() {
			leases, err := s.Take(tb.Context(), p, Request{Holder: h})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			for _, l := range leases {
				if other, ok := got[l.Addr]; ok {
					tb.Errorf("%s is given to %s and to %s", l.Addr, other, h)
				}
				got[l.Addr] = h
			}
		})
	}
	wg.Wait()
	return got, errs
}

func all(errs []error, target error) bool {
	for _, err := range errs {
		if !errors.Is(err, target) {
			return false
		}
	}
	return true
}

func holders(n, nodes int) []ipam.Holder {
	var out []ipam.Holder
	for i := range n {
		out = append(out, holderOn(fmt.Sprintf("node-%d", i%nodes), i))
	}
	return out
}
