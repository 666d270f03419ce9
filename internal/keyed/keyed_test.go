package keyed_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/keyed"
)

// TestLockInOrder: callers of one key get it in the order of their arrival, callers of
// another key at once, and nothing is left.
func TestLockInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g keyed.Gates[string]
		unlock, err := g.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan int, 3)
		for n := range 3 {
			go func() {
				unlock, err := g.Lock(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				order <- n
				unlock()
			}()
			synctest.Wait()
		}
		other, err := g.Lock(t.Context(), "b")
		if err != nil || len(order) != 0 {
			t.Fatalf("key b: %v; %d entered key a beside its holder", err, len(order))
		}
		other()
		unlock()
		synctest.Wait()
		if got := []int{<-order, <-order, <-order}; !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("entered in the order %v", got)
		}
		if g.Len() != 0 {
			t.Errorf("%d keys are left", g.Len())
		}
	})
}

// TestEnterBounded: the places and the queue are limited, and a wait ends with its context.
func TestEnterBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g keyed.Gates[string]
		enter := func(ctx context.Context) (func(), error) { return g.Enter(ctx, "a", 2, 1) }
		first, err1 := enter(t.Context())
		second, err2 := enter(t.Context())
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		waited := make(chan error)
		go func() {
			_, err := enter(ctx)
			waited <- err
		}()
		synctest.Wait()
		if _, err := enter(t.Context()); !errors.Is(err, keyed.ErrFull) {
			t.Errorf("a fourth caller: %v", err)
		}
		cancel(gone)
		if err := <-waited; !errors.Is(err, gone) {
			t.Errorf("the wait ended with %v", err)
		}
		first()
		third, err := enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second()
		third()
		if g.Len() != 0 {
			t.Errorf("%d keys are left", g.Len())
		}
	})
}

// TestBatches: items that arrive during a call share the next one, up to Most; each item
// has its own error; another key does not wait.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := errors.New("poison")
		proceed := make(chan struct{})
		var calls [][]int
		b := keyed.Batches[string, int]{Most: 3, Work: func(_ context.Context, key string, all []int) []error {
			if key == "other" {
				return nil
			}
			<-proceed
			calls = append(calls, slices.Clone(all))
			errs := make([]error, len(all))
			for n, item := range all {
				if item == 2 {
					errs[n] = poison
				}
			}
			return errs
		}}
		got := make(chan []error, 5)
		for n := range 5 {
			go func() { got <- b.Do(t.Context(), "a", n) }()
			synctest.Wait()
		}
		if err := errors.Join(b.Do(t.Context(), "other", 1)...); err != nil || !b.Busy("a") || b.Busy("other") {
			t.Errorf("key other: %v, busy: %v, key a busy: %v", err, b.Busy("other"), b.Busy("a"))
		}
		close(proceed)
		var failed int
		for range 5 {
			if err := errors.Join(<-got...); errors.Is(err, poison) {
				failed++
			} else if err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if want := [][]int{{0}, {1, 2, 3}, {4}}; !slices.EqualFunc(calls, want, slices.Equal) || failed != 1 || b.Len() != 0 {
			t.Errorf("calls %v, want %v; %d failed, %d keys are left", calls, want, failed, b.Len())
		}
	})
}

// TestBatchesOutliveCaller: the work goes on when its caller stops waiting, for Patience at
// most.
func TestBatchesOutliveCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		b := keyed.Batches[string, int]{Patience: time.Minute, Work: func(ctx context.Context, _ string, _ []int) []error {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil
		}}
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		start := time.Now()
		if err := b.Do(ctx, "a", 1)[0]; !errors.Is(err, gone) {
			t.Errorf("the caller got %v", err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("the work ended with %v after %v", err, time.Since(start))
		}
	})
}
