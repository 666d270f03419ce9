package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

const (
	stormSize, smallStormSize = 10_000, 1000
	// stormNodes is how many nodes the pods of a storm are on.
	stormNodes = 100
)

// meter counts the writes of a block store and how many are in progress.
type meter struct {
	block.Client

	mu                    sync.Mutex
	writes, running, most int
}

func (m *meter) write(do func() (*v1alpha1.IPBlock, error)) (*v1alpha1.IPBlock, error) {
	m.mu.Lock()
	m.writes++
	m.running++
	m.most = max(m.most, m.running)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.running--
		m.mu.Unlock()
	}()
	return do()
}

// Create implements block.Client.
func (m *meter) Create(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	return m.write(func() (*v1alpha1.IPBlock, error) { return m.Client.Create(ctx, b) })
}

// Update implements block.Client.
func (m *meter) Update(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	return m.write(func() (*v1alpha1.IPBlock, error) { return m.Client.Update(ctx, b) })
}

// allocator is the controller's block store with a pool in a domain of its own,
// and the blocks fed back to it by a watch, as in the controller.
type allocator struct {
	w     *testbed
	pool  *ipam.Pool
	api   *meter
	store *block.Store
	end   func() error
	// given are the addresses that were handed out.
	given map[netip.Addr]bool
}

// newAllocator creates an allocator whose pool has the range. No controller may run,
// because it would find addresses that no pod explains.
func (w *testbed) newAllocator(ctx context.Context, domain, addresses string) (*allocator, error) {
	pool, err := ipam.ParsePool(ipam.PoolSpec{Name: domain, Domain: domain, Ranges: []string{addresses}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	blocks, err := w.kube.Watch(ctx, &v1alpha1.IPBlockList{}, client.MatchingLabels{v1alpha1.LabelDomain: domain})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch blocks: %w", err)
	}
	a := &allocator{w: w, pool: pool, api: &meter{Client: block.Kube{Writer: w.kube, Live: w.kube}}, given: map[netip.Addr]bool{}}
	a.store = block.New(a.api, block.Config{})
	done := make(chan error, 1)
	go func() { done <- a.store.Run(ctx) }()
	// No other program writes these blocks: if the API server ends the watch, the store
	// still has their state.
	go func() {
		for event := range blocks.ResultChan() {
			if b, ok := event.Object.(*v1alpha1.IPBlock); ok && event.Type != watch.Deleted {
				a.store.Observe(b)
			}
		}
	}()
	a.end = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	return a, nil
}

// remove ends the store and removes its blocks.
func (a *allocator) remove(ctx context.Context) error {
	return errors.Join(a.end(), a.w.kube.DeleteAllOf(ctx, &v1alpha1.IPBlock{}, client.MatchingLabels{v1alpha1.LabelDomain: a.pool.Domain()}))
}

// stormHolder returns the i-th pod as a holder.
func stormHolder(i int) ipam.Holder {
	return ipam.Holder{
		PodUID: fmt.Sprintf("9b2e6f4e-1a2b-4c3d-8e9f-%012d", i), Interface: "eth0",
		Namespace: namespace, Pod: fmt.Sprintf("storm-6d4cf56db6-%05d", i), Node: fmt.Sprintf("node-%d", i%stormNodes),
	}
}

// take requests an address for each of n more pods, all at once, and returns the time
// until the last had one.
func (a *allocator) take(ctx context.Context, n int) (time.Duration, error) {
	var (
		first  = len(a.given)
		leases = make([][]block.Lease, n)
		errs   = make([]error, n)
		begin  = make(chan struct{})
		all    sync.WaitGroup
	)
	for i := range n {
		all.Go(func() {
			<-begin
			leases[i], errs[i] = a.store.Take(ctx, a.pool, block.Request{Holder: stormHolder(first + i)})
		})
	}
	start := time.Now()
	close(begin)
	all.Wait()
	took := time.Since(start)
	if err := firstOf(errs); err != nil {
		return took, err
	}
	for _, l := range leases {
		if len(l) != 1 || a.given[l[0].Addr] {
			return took, fmt.Errorf("%v was handed out; want one address that was not handed out before", l)
		}
		a.given[l[0].Addr] = true
	}
	return took, nil
}

// storm measures many allocations at once.
func storm(ctx context.Context, w *testbed) (map[string]figure, error) {
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.stopController(); err != nil {
		return nil, err
	}
	var large, small, raw, each samples
	rounds := w.samples(5, 1)
	for round := range rounds {
		var most int
		err := inTurns(round,
			func() error {
				perSecond, _, err := w.stormOf(ctx, smallStormSize, nil)
				small = append(small, perSecond)
				return err
			},
			func() error {
				perSecond, api, err := w.stormOf(ctx, stormSize, func(a *allocator) error {
					most = a.api.most
					rate, err := a.rawWrites(ctx, w.samples(2000, 400), most)
					raw = append(raw, rate)
					return err
				})
				if err != nil {
					return err
				}
				large, each = append(large, perSecond), append(each, float64(api.writes)/stormSize)
				return nil
			})
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
		w.Say("  round %d of %d: %.0f allocations/s with %.4f writes each, of %d: %.0f/s; %.0f raw writes/s by %d clients",
			round+1, rounds, large[round], each[round], smallStormSize, small[round], raw[round], most)
	}
	return map[string]figure{
		"alloc_storm_per_s":     {large.median(), raw.median()},
		"alloc_storm1000_per_s": {small.median(), raw.median()},
		"alloc_writes_each":     {each.median(), 0.05},
	}, nil
}

// stormOf returns how many allocations per second a storm of n had, and calls then with
// the allocator.
func (w *testbed) stormOf(ctx context.Context, n int, then func(*allocator) error) (perSecond float64, api *meter, err error) {
	a, err := w.newAllocator(ctx, "bench-storm", "10.0.0.0-10.0.255.255")
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, a.remove(ctx)) }()
	took, err := a.take(ctx, n)
	if err != nil {
		return 0, nil, err
	}
	if then != nil {
		err = errors.Join(a.end(), then(a))
	}
	return float64(n) / took.Seconds(), a.api, err
}

// rawWrites returns how many updates per second as many clients make of the blocks that a
// storm left; each client has blocks of its own.
func (a *allocator) rawWrites(ctx context.Context, n, clients int) (float64, error) {
	list, err := a.blocks(ctx)
	if err != nil {
		return 0, err
	}
	clients = min(clients, len(list))
	errs := make([]error, clients)
	var running sync.WaitGroup
	start := time.Now()
	for i := range clients {
		running.Go(func() {
			for k := i; k < n && errs[i] == nil; k += clients {
				b := &list[i]
				b.Annotations = map[string]string{"bench": fmt.Sprintf("%08d", k)} // without a change nothing is written
				errs[i] = a.w.kube.Update(ctx, b)
			}
		})
	}
	running.Wait()
	return float64(n) / time.Since(start).Seconds(), firstOf(errs)
}

func (a *allocator) blocks(ctx context.Context) ([]v1alpha1.IPBlock, error) {
	list := &v1alpha1.IPBlockList{}
	err := a.w.kube.List(ctx, list, client.MatchingLabels{v1alpha1.LabelDomain: a.pool.Domain()})
	return list.Items, err
}

// fullPool measures whether the last addresses of a large pool cost more than
// the first.
func fullPool(ctx context.Context, w *testbed) (_ map[string]figure, err error) {
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.stopController(); err != nil {
		return nil, err
	}
	a, err := w.newAllocator(ctx, "bench-100k", "10.0.0.0-10.1.134.159")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.remove(ctx)) }()
	total := int(a.pool.Usable())
	if total != 100_000 {
		return nil, fmt.Errorf("the pool has %d addresses", total)
	}
	const alone = 500
	first, err := a.filled(ctx, total/100, alone)
	if err != nil {
		return nil, err
	}
	last, err := a.filled(ctx, total*99/100, alone)
	if err != nil {
		return nil, err
	}
	if err := a.exhaust(ctx, total); err != nil {
		return nil, err
	}
	list, err := a.blocks(ctx)
	if err != nil {
		return nil, err
	}
	size := 0
	for i := range list {
		raw, err := json.Marshal(&list[i])
		if err != nil {
			return nil, err
		}
		size += len(raw)
	}
	w.Say("  one allocation at 1%%: p50 %.2f ms, p99 %.2f; at 99%%: p50 %.2f ms, p99 %.2f; %d blocks, %d writes in all",
		first.median(), first.percentile(99), last.median(), last.percentile(99), len(list), a.api.writes)
	return map[string]figure{
		"pool100k_latency_ratio": {last.median() / first.median(), 1},
		"pool100k_blocks_mb":     {float64(size) / 1e6, 0},
	}, nil
}

// filled fills the pool until n addresses are given, and returns how long each
// of some more allocations takes, one after the other.
func (a *allocator) filled(ctx context.Context, n, more int) (samples, error) {
	for len(a.given) < n {
		if _, err := a.take(ctx, min(stormSize, n-len(a.given))); err != nil {
			return nil, err
		}
	}
	var times samples
	for range more {
		took, err := a.take(ctx, 1)
		if err != nil {
			return nil, err
		}
		times.addTime(took)
	}
	return times, nil
}

// exhaust takes all remaining addresses, and checks that there are no more.
func (a *allocator) exhaust(ctx context.Context, total int) error {
	if _, err := a.filled(ctx, total, 0); err != nil {
		return err
	}
	_, err := a.take(ctx, 1)
	if !errors.Is(err, fault.ErrExhausted) {
		return fmt.Errorf("one more than %d addresses: %w; it must be %w", total, err, fault.ErrExhausted)
	}
	return nil
}
