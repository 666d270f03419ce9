package network

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
)

// The seven points in which the kubelet's plugin manager was subtle, or wrong.
// Those that are tested elsewhere: 4, order of arrival, in
// TestManagerSerializesInOrderOfArrival; 5 and 6, entries under load, in
// TestManagerKeepsItsEntryUnderLoad.

// Point 1: the key was the pod's name, so that the sandbox of a new pod waited
// for the hanging one of its namesake.
func TestSubtle1NamesakesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{tearDown: func(context.Context, cniproto.Request) error { <-hang; return nil }})
		const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0"
		old := make(chan error, 1)
		go func() { old <- m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "old", Args: pod}) }()
		synctest.Wait()
		if _, err := m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "new", Args: pod}); err != nil {
			t.Error(err)
		}
		close(hang)
		if err := <-old; err != nil {
			t.Error(err)
		}
		wantIdle(t, m)
	})
}

// Point 1, the other side: those that share kept addresses do wait, each for the
// one before, and whoever gives up is not in the way.
func TestSubtle1HeirsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
		var order []string
		end := make(chan struct{})
		as := func(ctx context.Context, containerID string, until <-chan struct{}) error {
			return m.Add(ctx, containerID, "eth0", func(ctx context.Context) error {
				return m.Identity(ctx, "ns/web-0", func(context.Context) error {
					order = append(order, containerID)
					if until != nil {
						<-until
					}
					return nil
				})
			})
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = as(t.Context(), "a", end) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wg.Go(func() {
			if err := as(ctx, "impatient", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { _ = as(t.Context(), "b", nil) })
		synctest.Wait()
		// A DEL does not wait for an heir: the heir may wait for it.
		if err := m.Del(t.Context(), "before", "eth0", nothing); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		close(end)
		wg.Wait()
		if len(order) != 2 || order[0] != "a" || order[1] != "b" {
			t.Errorf("order %v", order)
		}
		wantIdle(t, m)
	})
}

// Point 2: teardowns without a pod's name all had the key "_", and one that hung
// kept all others waiting.
func TestSubtle2OrphansDoNotShareAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{tearDown: func(_ context.Context, r cniproto.Request) error {
			if r.ContainerID == "a" {
				<-hang
			}
			return nil
		}})
		go func() { _ = m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		if err := m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "b"}); err != nil {
			t.Error(err)
		}
		// Nor do pods without an identity.
		go func() { _ = m.Identity(t.Context(), "", func(context.Context) error { <-hang; return nil }) }()
		synctest.Wait()
		if err := m.Identity(t.Context(), "", nothing); err != nil {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// Point 3: the timer ran while an operation waited for its lock, and one stuck
// pod looked like slow networking.
func TestSubtle3WaitingIsNotWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		m, err := NewManager(&fakePlugin{}, registry, false)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = m.Add(t.Context(), "a", "eth0", func(context.Context) error { <-time.After(5 * time.Second); return nil })
		}()
		synctest.Wait()
		if err := m.Del(t.Context(), "a", "eth0", func(context.Context) error { <-time.After(time.Minute); return nil }); err != nil {
			t.Fatal(err)
		}
		waited := map[string]float64{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				waited[s.GetLabel()[1].GetValue()+" "+s.GetLabel()[0].GetValue()] = s.GetHistogram().GetSampleSum()
			}
		}
		want := map[string]float64{"ADD gate": 0, "ADD sandbox": 0, "ADD identity": 0, "DEL gate": 0, "DEL sandbox": 5}
		for name, seconds := range want {
			if got, there := waited[name]; !there || got != seconds {
				t.Errorf("%s: waited %vs, want %vs (of %v)", name, got, seconds, waited)
			}
		}
	})
}

// Point 4: waiting could not be ended, so a set-up that hung kept the teardown and
// the status of its pod waiting for ever.
func TestSubtle4WaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{setUp: func(context.Context, cniproto.Request) ([]byte, error) { <-hang; return nil, nil }})
		go func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.TearDownPod(ctx, cniproto.Request{ContainerID: "a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(hang)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// Point 5: the branch for a count that was wrong deleted the entry with its lock
// held. Here a panic is what would leave it held, at each of the three.
func TestSubtle5APanicStrandsNobody(t *testing.T) {
	m := newManager(t, &fakePlugin{setUp: func(context.Context, cniproto.Request) ([]byte, error) { panic("x") }})
	calls := map[string]func(){
		"ADD":      func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) },
		"identity": func() { _ = m.Identity(t.Context(), "ns/a", func(context.Context) error { panic("x") }) },
		"GC":       func() { _ = m.Alone(t.Context(), func(context.Context) error { panic("x") }) },
	}
	for name, call := range calls {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic was swallowed", name)
				}
			}()
			call()
		}()
		wantIdle(t, m)
	}
}

// Point 7: what has to do with no pod waits for none.
func TestSubtle7StatusWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		down := errors.New("no bridge")
		p := &fakePlugin{status: down, setUp: func(context.Context, cniproto.Request) ([]byte, error) { <-hang; return nil, nil }}
		m := newManager(t, p)
		go func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), nothing) }()
		synctest.Wait()
		m.Event(PodCIDRChanged)
		if err := m.Status(); !errors.Is(err, down) || len(p.events) != 1 {
			t.Errorf("%v, %v", err, p.events)
		}
		close(hang)
	})
}

// Different pods do run side by side, each in its own order: upstream's test of
// ten pods with four cycles each.
func TestTenPodsInFourCycles(t *testing.T) {
	var mu sync.Mutex
	busy := map[string]int{}
	p := &fakePlugin{}
	step := func(_ context.Context, r cniproto.Request) {
		mu.Lock()
		defer mu.Unlock()
		busy[r.ContainerID]++
		if busy[r.ContainerID] != 1 {
			t.Errorf("%d operations on %s at once", busy[r.ContainerID], r.ContainerID)
		}
	}
	leave := func(r cniproto.Request) {
		mu.Lock()
		defer mu.Unlock()
		delete(busy, r.ContainerID)
	}
	p.setUp = func(ctx context.Context, r cniproto.Request) ([]byte, error) {
		step(ctx, r)
		defer leave(r)
		return nil, nil
	}
	p.tearDown = func(ctx context.Context, r cniproto.Request) error { step(ctx, r); defer leave(r); return nil }
	m := newManager(t, p)
	var wg sync.WaitGroup
	for pod := range 10 {
		for range 4 {
			wg.Go(func() {
				r := cniproto.Request{ContainerID: string(rune('a' + pod))}
				if _, err := m.SetUpPod(t.Context(), r); err != nil && !errors.Is(err, ErrDeleted) {
					t.Error(err)
				}
				if err := m.TearDownPod(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	wantIdle(t, m)
}
