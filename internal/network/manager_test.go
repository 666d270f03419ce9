package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func nothing(context.Context) error { return nil }

func TestManagerSerializesInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
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
		if len(m.turns) != 0 {
			t.Errorf("%d entries stay", len(m.turns))
		}
	})
}

func TestManagerRunsSandboxesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
		hold := make(chan struct{})
		go func() { _ = m.Do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		synctest.Wait()
		if err := m.Do(t.Context(), "b", nothing); err != nil {
			t.Error(err)
		}
		close(hold)
	})
}

func TestManagerWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
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
		if len(m.turns) != 0 {
			t.Errorf("%d entries stay", len(m.turns))
		}
		if err := m.Do(t.Context(), "a", nothing); err != nil {
			t.Error(err)
		}
	})
}

func TestManagerReleasesOnPanic(t *testing.T) {
	m := newManager(t, &fakePlugin{})
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
	if len(m.turns) != 0 {
		t.Errorf("%d entries stay", len(m.turns))
	}
}

func TestManagerDelCancelsAddAndWaitsForItsUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
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

func TestManagerTombstone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
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

// A DEL of one interface concerns no ADD of another: neither one that runs nor one
// that comes later. A DEL without a name, and the end of the sandbox, concern all.
func TestManagerDelIsOfOneInterface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
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

func TestManagerTombstonesAreBounded(t *testing.T) {
	m := newManager(t, &fakePlugin{})
	for n := range maxTombstones + 100 {
		if err := m.Del(t.Context(), fmt.Sprint(n), "eth0", nothing); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.buried) != maxTombstones || len(m.order) != maxTombstones {
		t.Errorf("%d tombstones, %d in order", len(m.buried), len(m.order))
	}
}

// Whoever waits is counted before it waits: else the entry is dropped and made
// anew under it, and two run at once.
func TestManagerKeepsItsEntryUnderLoad(t *testing.T) {
	m := newManager(t, &fakePlugin{})
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
	if len(m.turns) != 0 {
		t.Errorf("%d entries stay", len(m.turns))
	}
}
