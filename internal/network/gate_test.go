package network

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// ocicni's gcLock: GC has the gate alone. Those that run are waited for, those
// that come wait, in the order in which they came.
func TestGateIsSharedByAddAndDelAndGCHasItAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
		var events []string
		say := func(what string, until <-chan struct{}) func(context.Context) error {
			return func(context.Context) error {
				events = append(events, what)
				if until != nil {
					<-until
				}
				return nil
			}
		}
		endAdd, endDel, endGC := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() { _ = m.Add(t.Context(), "a", say("ADD a", endAdd)) }()
		synctest.Wait()
		go func() { _ = m.Del(t.Context(), "b", say("DEL b", endDel)) }()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), say("GC", endGC)) }()
		synctest.Wait()
		go func() { _ = m.Add(t.Context(), "c", say("ADD c", nil)) }()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), say("GC again", nil)) }()
		synctest.Wait()
		want := []string{"ADD a", "DEL b"}
		for _, end := range []chan struct{}{endAdd, endDel} {
			if !slices.Equal(events, want) {
				t.Fatalf("events %v, want %v", events, want)
			}
			close(end)
			synctest.Wait()
		}
		if want = append(want, "GC"); !slices.Equal(events, want) {
			t.Fatalf("events %v, want %v", events, want)
		}
		close(endGC)
		synctest.Wait()
		if want = append(want, "ADD c", "GC again"); !slices.Equal(events, want) {
			t.Fatalf("events %v, want %v", events, want)
		}
		wantIdle(t, m)
	})
}

// A GC that gives up lets those in that waited behind it.
func TestGateOpensBehindAGCThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
		end := make(chan struct{})
		go func() { _ = m.Add(t.Context(), "a", func(context.Context) error { <-end; return nil }) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gc := make(chan error, 1)
		go func() { gc <- m.Alone(ctx, nothing) }()
		synctest.Wait()
		start := time.Now()
		if err := m.Add(t.Context(), "b", nothing); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("ADD waited %s behind a GC that waited 1s", waited)
		}
		if err := <-gc; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GC: %v", err)
		}
		close(end)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// A DEL cancels the ADD of its sandbox also while a GC waits for that ADD: else
// the three would wait for one another.
func TestDelCancelsAnAddThatAGCWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &fakePlugin{})
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		}()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), nothing) }()
		synctest.Wait()
		if err := m.Del(t.Context(), "a", nothing); err != nil {
			t.Error(err)
		}
		if err := <-added; !errors.Is(err, ErrDeleted) {
			t.Errorf("ADD: %v", err)
		}
		wantIdle(t, m)
	})
}

// GC removes sandboxes with the operations that the sweep has.
func TestAloneMayDo(t *testing.T) {
	m := newManager(t, &fakePlugin{})
	err := m.Alone(t.Context(), func(ctx context.Context) error { return m.Do(ctx, "a", nothing) })
	if err != nil {
		t.Error(err)
	}
	wantIdle(t, m)
}

// wantIdle checks that nothing is left of operations that ended.
func wantIdle(t *testing.T, m *Manager) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.turns) != 0 || m.gate.alone || m.gate.sharing != 0 || len(m.gate.waiting) != 0 {
		t.Errorf("%d entries stay, gate %+v", len(m.turns), m.gate)
	}
}
