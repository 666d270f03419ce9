package node

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
		m := newManager(time.Now)
		hold := make(chan struct{})
		go func() {
			_ = m.do(t.Context(), "a", func(context.Context) error { <-hold; return nil })
		}()
		settle()
		var mu sync.Mutex
		var order []int
		running := 0
		for n := range 10 {
			go func() {
				_ = m.do(t.Context(), "a", func(context.Context) error {
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
			settle()
		}
		close(hold)
		settle()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Errorf("order %v", order)
		}
		if len(m.sandboxes) != 0 {
			t.Errorf("%d entries stay", len(m.sandboxes))
		}
	})
}

func TestManagerRunsSandboxesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(time.Now)
		hold := make(chan struct{})
		go func() { _ = m.do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		settle()
		if err := m.do(t.Context(), "b", nothing); err != nil {
			t.Error(err)
		}
		close(hold)
	})
}

func TestManagerWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(time.Now)
		hold := make(chan struct{})
		go func() { _ = m.do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		settle()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.do(ctx, "a", nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(hold)
		settle()
		if len(m.sandboxes) != 0 {
			t.Errorf("%d entries stay", len(m.sandboxes))
		}
		if err := m.do(t.Context(), "a", nothing); err != nil {
			t.Error(err)
		}
	})
}

func TestManagerReleasesOnPanic(t *testing.T) {
	m := newManager(time.Now)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = m.do(t.Context(), "a", func(context.Context) error { panic("x") })
	}()
	if err := m.do(t.Context(), "a", nothing); err != nil {
		t.Error(err)
	}
	if len(m.sandboxes) != 0 {
		t.Errorf("%d entries stay", len(m.sandboxes))
	}
}

func TestManagerDelCancelsAddAndWaitsForItsUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(time.Now)
		var events []string
		undo := make(chan struct{})
		added := make(chan error, 1)
		go func() {
			added <- m.add(t.Context(), "a", func(ctx context.Context) error {
				<-ctx.Done()
				<-undo
				events = append(events, "undone")
				return context.Cause(ctx)
			})
		}()
		settle()
		deleted := make(chan error, 1)
		go func() {
			deleted <- m.del(t.Context(), "a", func(context.Context) error {
				events = append(events, "deleted")
				return nil
			})
		}()
		settle()
		if len(events) != 0 {
			t.Errorf("DEL did not wait: %v", events)
		}
		close(undo)
		if err := <-added; !errors.Is(err, errClosed) {
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
		m := newManager(time.Now)
		hold := make(chan struct{})
		go func() { _ = m.do(t.Context(), "a", func(context.Context) error { <-hold; return nil }) }()
		settle()
		waiting := make(chan error, 1)
		go func() { waiting <- m.add(t.Context(), "a", nothing) }()
		settle()
		go func() { _ = m.del(t.Context(), "a", nothing) }()
		settle()
		close(hold)
		if err := <-waiting; !errors.Is(err, errClosed) {
			t.Errorf("an ADD that waited when DEL came: %v", err)
		}
		settle()
		if err := m.add(t.Context(), "a", nothing); !errors.Is(err, errClosed) {
			t.Errorf("a late ADD: %v", err)
		}
		if err := m.add(t.Context(), "b", nothing); err != nil {
			t.Errorf("another sandbox: %v", err)
		}
		time.Sleep(tombstoneAge) //nolint:forbidigo // the bubble's clock
		if err := m.del(t.Context(), "c", nothing); err != nil {
			t.Error(err)
		}
		if err := m.add(t.Context(), "a", nothing); err != nil {
			t.Errorf("after the tombstone's time: %v", err)
		}
	})
}

func TestManagerTombstonesAreBounded(t *testing.T) {
	m := newManager(time.Now)
	for n := range maxTombstones + 100 {
		if err := m.del(t.Context(), fmt.Sprint(n), nothing); err != nil {
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
	m := newManager(time.Now)
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
				_ = m.do(ctx, fmt.Sprint(key), func(context.Context) error {
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
	if len(m.sandboxes) != 0 {
		t.Errorf("%d entries stay", len(m.sandboxes))
	}
}
