package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func newTurns(t *testing.T) *Locks {
	t.Helper()
	m, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func nothing(context.Context) error { return nil }

func TestLocksSerializesInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		hold := make(chan struct{})
		go func() {
			_ = m.Do(t.Context(), "a", func(context.Context) error { <-hold; return nil })
		}()
		synctest.Wait()
		var mu sync.Mutex
		var order []int
		running := 0
		for n := range 10 {
			go func() {
				_ = m.Do(t.Context(), "a", func(context.Context) error {
					mu.Lock()
					running++
					if running != 1 {
						t.Errorf("%d at once", running)
					}
					order = append(order, n)
					running--
					mu.Unlock()
					return nil
				})
			}()
			synctest.Wait()
		}
		close(hold)
		synctest.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Errorf("order %v", order)
		}
		if m.gates.Len() != 0 {
			t.Errorf("%d entries stay", m.gates.Len())
		}
	})
}

func TestLocksRunsSandboxesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		hold := make(chan struct{})
		go func() { _ = m.Do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		synctest.Wait()
		if err := m.Do(t.Context(), "b", nothing); err != nil {
			t.Error(err)
		}
		close(hold)
	})
}

func TestLocksWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		hold := make(chan struct{})
		go func() { _ = m.Do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Do(ctx, "a", nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(hold)
		synctest.Wait()
		if m.gates.Len() != 0 {
			t.Errorf("%d entries stay", m.gates.Len())
		}
		if err := m.Do(t.Context(), "a", nothing); err != nil {
			t.Error(err)
		}
	})
}

func TestLocksReleasesOnPanic(t *testing.T) {
	m := newTurns(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = m.Do(t.Context(), "a", func(context.Context) error { panic("x") })
	}()
	if err := m.Do(t.Context(), "a", nothing); err != nil {
		t.Error(err)
	}
	if m.gates.Len() != 0 {
		t.Errorf("%d entries stay", m.gates.Len())
	}
}

func TestLocksDelCancelsAddAndWaitsForItsUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		var events []string
		undo := make(chan struct{})
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				<-ctx.Done()
				<-undo
				events = append(events, "undone")
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		deleted := make(chan error, 1)
		go func() {
			deleted <- m.Del(t.Context(), "a", "eth0", func(context.Context) error {
				events = append(events, "deleted")
				return nil
			})
		}()
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("DEL did not wait: %v", events)
		}
		close(undo)
		if err := <-added; !errors.Is(err, ErrDeleted) {
			t.Errorf("ADD: %v", err)
		}
		if err := <-deleted; err != nil {
			t.Errorf("DEL: %v", err)
		}
		if want := []string{"undone", "deleted"}; !slices.Equal(events, want) {
			t.Errorf("events %v", events)
		}
	})
}

func TestLocksTombstone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		hold := make(chan struct{})
		go func() { _ = m.Do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		synctest.Wait()
		waiting := make(chan error, 1)
		go func() { waiting <- m.Add(t.Context(), "a", "eth0", nothing) }()
		synctest.Wait()
		go func() { _ = m.Del(t.Context(), "a", "eth0", nothing) }()
		synctest.Wait()
		close(hold)
		if err := <-waiting; !errors.Is(err, ErrDeleted) {
			t.Errorf("an ADD that waited when DEL came: %v", err)
		}
		synctest.Wait()
		if err := m.Add(t.Context(), "a", "eth0", nothing); !errors.Is(err, ErrDeleted) {
			t.Errorf("a late ADD: %v", err)
		}
		if err := m.Add(t.Context(), "b", "eth0", nothing); err != nil {
			t.Errorf("another sandbox: %v", err)
		}
		time.Sleep(tombstoneAge) //nolint:forbidigo // the bubble's clock
		if err := m.Del(t.Context(), "c", "eth0", nothing); err != nil {
			t.Error(err)
		}
		if err := m.Add(t.Context(), "a", "eth0", nothing); err != nil {
			t.Errorf("after the tombstone's time: %v", err)
		}
	})
}

// A DEL of one interface does not affect ADDs of another, neither running nor later ADDs.
// A DEL without a name and the end of the sandbox affect all interfaces.
func TestLocksDelIsOfOneInterface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		hold, added, deleted := make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				<-hold
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		go func() { deleted <- m.Del(t.Context(), "a", "net1", nothing) }()
		synctest.Wait()
		close(hold)
		if err := errors.Join(<-added, <-deleted); err != nil {
			t.Errorf("ADD of eth0 and DEL of net1: %v", err)
		}
		if err := m.Add(t.Context(), "a", "net1", nothing); !errors.Is(err, ErrDeleted) {
			t.Errorf("ADD of net1 after its DEL: %v", err)
		}
		if err := m.Add(t.Context(), "a", "eth0", nothing); err != nil {
			t.Errorf("ADD of eth0 after a DEL of net1: %v", err)
		}
		if err := m.Del(t.Context(), "a", "", nothing); err != nil {
			t.Error(err)
		}
		m.End("b")
		for _, id := range []string{"a", "b"} {
			if err := m.Add(t.Context(), id, "eth0", nothing); !errors.Is(err, ErrDeleted) {
				t.Errorf("ADD of sandbox %s after its end: %v", id, err)
			}
		}
	})
}

func TestLocksTombstonesAreBounded(t *testing.T) {
	m := newTurns(t)
	for n := range maxTombstones + 100 {
		if err := m.Del(t.Context(), fmt.Sprint(n), "eth0", nothing); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.dead) != maxTombstones || len(m.order) != maxTombstones {
		t.Errorf("%d tombstones, %d in order", len(m.dead), len(m.order))
	}
}

// A caller is counted before it waits. Otherwise the queue is removed and replaced by a
// new one while the caller waits, and two callers run at once.
func TestLocksKeepsItsEntryUnderLoad(t *testing.T) {
	m := newTurns(t)
	var wg sync.WaitGroup
	var mu [4]sync.Mutex
	for n := range 64 {
		wg.Go(func() {
			for i := range 200 {
				key := (n + i) % len(mu)
				ctx, cancel := context.WithCancel(t.Context())
				if i%7 == 0 {
					cancel() // gives up while it waits, or gets its turn in that moment
				}
				_ = m.Do(ctx, fmt.Sprint(key), func(context.Context) error {
					if !mu[key].TryLock() {
						t.Error("two at once")
						return nil
					}
					mu[key].Unlock()
					return nil
				})
				cancel()
			}
		})
	}
	wg.Wait()
	if m.gates.Len() != 0 {
		t.Errorf("%d entries stay", m.gates.Len())
	}
}

// The other side of point 1: pods that share a claim wait for their predecessor. A pod
// that gives up does not block the next.
func TestSubtle1ClaimHoldersWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
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
		// A DEL does not wait for the successor: the successor may be waiting for it.
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

// Point 3: the metric of the kubelet included the wait for a lock, so one stuck pod
// looked like slow networking.
func TestSubtle3WaitingIsNotWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		m, err := New(registry)
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
